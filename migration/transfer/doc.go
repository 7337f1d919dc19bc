// Package transfer copies the disk files of an instance that is off from one host to another, in
// pieces, at a bounded rate. It holds no disk data but the pieces under way: the source reads, the
// destination writes, and Copy goes on from where the destination is after every break.
package transfer
