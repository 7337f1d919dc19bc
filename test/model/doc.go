// Package model checks the hand-over of a guest as a small state machine: five models
// in spin's language, searched to the end for states that break a law of the design.
//
// move.pml is one live migration (token, commit record, claims, leases, tombstones,
// two consumers in Placement, libvirt on both sides, messages that are lost, late
// and repeated, agents that are killed at any step); ledger.pml is the claim lock
// and its shared commit. docs/model.md tells both in words and maps their steps to
// the code.
//
// A check is one model with its bounds; a mutant is a careless version of one step,
// compiled in by a macro, and one law that must catch it. The package runs spin, gcc
// and what they make, in folders below a work folder of the caller's, and writes
// nowhere else.
package model
