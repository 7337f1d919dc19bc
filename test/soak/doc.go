// Package soak breaks real moves of a real guest, round after round, and
// holds after each that the guest lived once and that nothing is left.
//
// A round is one move (Story) of a guest that dirties memory and writes a checked
// pattern to its disk: a live migration between the two hosts of a fleet, a cold one,
// a resize to the other host or on its own, a rebuild; what waits to be confirmed is
// confirmed or reverted by hand, or by its window. One fault or two from the table
// (Faults) strike, each at a moment: the beginning of a step of the
// journal, seen in the agent's watch API, while memory flows, while the move is
// undone, or some time after the move was asked for. The seed of a round decides
// all of it. What is broken is put right after a while, the move is awaited, and
// then must hold (truth.go): the move is over and says honestly where the guest
// is; the guest's own words and its disk show one life without a gap, or, where it
// was powered off, boots with the right machine that follow one another on the right
// disk (boots.go); the guest is as its user had it; ledgers,
// libvirt, Placement, files and processes are as they were before, save for the
// host. Both consoles are watched during the whole round.
//
// Run is the unattended form, `make soak`: it goes on after a failed round with
// a fresh fleet, keeps the failed one's logs, and ends with a table. The tests of
// the package are a dozen chosen rounds.
//
// What it reads: the agents' API, consoles, disks, /proc of the hosts. What it
// alone writes: the fleet's folder, and that of kept logs.
package soak
