// Package observability holds what we ship for Prometheus and Grafana against a real
// Prometheus that scrapes two agents: every rule is evaluated there, every query of the
// dashboard answers with numbers, and every alert has its page. promtool, of the same
// package, checks the rules and plays them through numbers that are known.
//
// The agents are whole ones in the process of the test, over a fake hypervisor each, the
// embedded Placement between them, and a machine of two cells from a fixture. Prometheus is a
// child process on loopback in a folder of the test's own, and ends with it.
package observability
