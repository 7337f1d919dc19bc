package host

import (
	"context"
	"fmt"
	"slices"
	"time"

	"berth/agent/host/disks"
	"berth/agent/host/streams"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// What others know of streams by this package's name; see package streams.
type (
	Streams     = streams.Processes
	StreamOrder = streams.Order
	StreamEnds  = streams.Ends
)

// The verbs' short names for what package streams remembers of a stream, and decides by it.
type result = streams.Result

const (
	stepStream = streams.Step

	resultNone   = streams.None
	resultLeft   = streams.Left
	resultUndone = streams.Undone
	resultLost   = streams.Lost
)

// copiedDisk is a disk that leaves by copy: its file here goes in the end.
type copiedDisk = disks.Moved

// cleanupTimeout bounds what is still written after a caller has gone.
// Arbitrary: many fsyncs, one of a slow disk.
const cleanupTimeout = 10 * time.Second

// newStreams makes the room of streams.
func (h *Host) newStreams() *streams.Streams {
	return streams.New(streams.Options{
		Host: h.o.Name, Tracker: h.tracker, Memory: h.memory, Driver: h.driver, Runtime: h.rt, Logger: h.log,
		Guests: leavingGuests{h}, Spawn: h.spawnUntilClose,
		Processes: h.o.Streams, Transport: h.o.Transport, TLS: h.o.StreamTLS, Poll: h.o.Poll, Agree: h.o.Agree,
	})
}

// streamStatus does operation.StreamStatus.
func (h *Host) streamStatus(ctx context.Context, ref migration.Ref) (migration.StreamStatus, error) {
	ledger, epoch := h.ledger(ref), h.attempts.Epoch(ref.Instance)
	settled := ""
	if w, ok := h.WordOn(ref); ok {
		settled = w.GuestIsAt
	}
	st, err := h.streams.Status(ctx, ref)
	st.Ledger, st.Epoch, st.Settled = ledger, epoch, settled
	return st, err
}

// AwaitStream implements migration.StreamWaiter.
func (h *Host) AwaitStream(ctx context.Context, ref migration.Ref, d time.Duration) error {
	return h.streams.Await(ctx, ref, d)
}

// EndStream implements migration.PostCopySource.
func (h *Host) EndStream(ctx context.Context, ref migration.Ref) error {
	return h.streams.EndStream(ctx, ref)
}

// StartPostCopy implements migration.PostCopySource.
func (h *Host) StartPostCopy(ctx context.Context, ref migration.Ref, s migration.Stream) error {
	return h.streams.StartPostCopy(ctx, ref, s)
}

// RecoverPostCopy implements migration.PostCopySource.
func (h *Host) RecoverPostCopy(ctx context.Context, ref migration.Ref, s migration.Stream) error {
	return h.streams.RecoverPostCopy(ctx, ref, s)
}

// openArrival starts the stream by which a guest comes, and says in p how. One that
// somebody else sends comes by what that tool has.
func (h *Host) openArrival(ctx context.Context, ref migration.Ref, c claims.Claim, source string, postCopy bool, p *migration.Prepared) error {
	if h.external.Foreign(h.attempts.Owner(ref)) {
		return nil
	}
	return h.streams.OpenArrival(ctx, ref, c, source, postCopy, p)
}

// ledger is this host's word on the token, seen from one attempt.
func (h *Host) ledger(ref migration.Ref) migration.Ledger {
	inst, ok := h.tracker.Instance(ref.Instance)
	switch {
	case h.tracker.CommitRefused(ref.Migration, ref.Attempt) && ok && inst.Token.State == claims.TokenHere:
		return migration.LedgerReclaimed
	case ok && inst.Token.State == claims.TokenHere:
		return migration.LedgerHere
	}
	if c, ok := h.tracker.Committed(ref.Migration); ok && c.Attempt == ref.Attempt && c.From == h.o.Name {
		return migration.LedgerSurrendered
	}
	return migration.LedgerElsewhere
}

// leavingGuests implements streams.Guests.
type leavingGuests struct{ h *Host }

func (g leavingGuests) MayLeave(instance string) error {
	if err := g.h.managing(""); err != nil {
		return err
	}
	inst, ok := g.h.tracker.Instance(instance)
	if !ok {
		return fault.New(fault.NotFound, "instance %s is not in the ledger", instance)
	}
	return g.h.tokenHere(inst)
}

func (g leavingGuests) Chosen(d driver.Domain) migration.PowerState { return powerState(d) }

func (g leavingGuests) Resume(ctx context.Context, instance string) error {
	return g.h.resume(ctx, instance)
}

func (g leavingGuests) Copied(text string, targets []string) ([]disks.Moved, error) {
	doc, err := parseDocument(text)
	if err != nil {
		return nil, err
	}
	var out []disks.Moved
	for _, target := range targets {
		i := slices.IndexFunc(doc.Devices.Disks, func(e diskElement) bool { return e.Target.Dev == target })
		if i < 0 || doc.Devices.Disks[i].Type != "file" || doc.Devices.Disks[i].path() == "" {
			return nil, fault.New(fault.Invalid, "disk %s is to be copied and is no file", target)
		}
		path := doc.Devices.Disks[i].path()
		real, _, _, err := g.h.files.Lookup(path)
		if err != nil {
			return nil, fault.Wrap(err, "disk %s", target)
		}
		files, err := disks.MovedFiles(g.h.files, target, path, real)
		if err != nil {
			return nil, fault.Wrap(err, "disk %s", target)
		}
		out = append(out, files...)
	}
	return out, nil
}

type secLabel = streams.SecLabel

func userReasons(doc document, node driver.Node, host string) []fault.Reason {
	return streams.UserReasons(doc.SecLabels, node, host)
}

// wholeHere refuses what must wait until all of a guest's memory is in one place.
func wholeHere(d driver.Domain, exists bool) error {
	if exists && d.InPostCopy() {
		return fault.Refuse(fault.Busy, "", fault.Reason{
			Code: "in_post_copy", Message: fmt.Sprintf("guest %s is in post-copy: part of its memory is still on the other host (%s (%s) here)", d.Name, d.State, d.Reason),
			Change: "wait until its memory has come; neither of the two domains may be ended before",
		})
	}
	return nil
}
