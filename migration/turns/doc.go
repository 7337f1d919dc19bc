// Package turns decides which of the moves that wait may go, and what each of the others
// waits for: from limits, what is under way, priorities and age. It is pure.
//
// # The order
//
// The higher priority goes first, of two equal ones the older, and of two as old the one with
// the lower uuid. A move that its limits keep back keeps back no other one that they do not:
// nobody waits who could go.
//
// # Starvation
//
// A move of a lower priority waits for as long as higher ones come, without an end: that is
// what a priority says here. Among moves of one priority nobody is passed by for ever, since
// the oldest goes with the first turn that it needs; and of what one move needs all is free
// again at the same moment, when another one gives back its turns.
//
// # Rooms at a destination
//
// How many guests may come to a host that host alone counts. It is asked again and again by
// the first of the moves that it had wait; those behind it do not ask before that one goes.
// Between the moves of several hosts the destination knows no order: whose question comes
// first after a guest has arrived, has the room.
package turns
