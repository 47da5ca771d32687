"""What a call costs behind mcproxy, against proxies that do nothing and proxies that do much: `make bench`.

A proxy under test has one core; the load (wrk) and the upstream have the others. Proxies take turns, and what is
reported is how they compare in the same minute on the same machine: ratios, never bare times. No test runs load.

    workloads ─▶ rounds ─▶ load (wrk) ─▶ proxies ─▶ upstream
                   └─▶ usage (/proc) ─▶ ratios ─▶ report, chart
"""
