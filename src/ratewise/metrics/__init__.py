"""Rates of predictions compared with constraints, with confidence intervals; for any model."""

from ratewise.metrics.rates import ClassRates, GroupRates, GroupRow, RateReport, RateRow, group_rates, rate_report

__all__ = ["ClassRates", "GroupRates", "GroupRow", "RateReport", "RateRow", "group_rates", "rate_report"]
