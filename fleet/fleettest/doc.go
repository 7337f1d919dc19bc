// Package fleettest holds what every store of fleet records must do, as suites (TestStore,
// TestLeases, TestRecords), and a store in memory that passes them, for tests and simulations:
// it is deterministic, lives on a runtime's clock, and loses answers, keeps commits back and
// refuses calls when it is told to.
package fleettest
