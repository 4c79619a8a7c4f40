"""A sample fleet on real data: 336,776 flights of 16 airlines, an airline is a tenant."""
