// Package death has the proofs by which another host counts as dead, and what the fleet's records let
// a conductor do with its instances then.
//
// It reads the fleet's records, and asks other hosts' agents and fencing hooks through its options. It
// writes deaths and evacuations to the records, and which fencing hook runs (bucket "agent" of the
// store). Nothing is a proof but what Proofs lists, and no instance is given away without one.
package death

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/agent/host/hooks"
	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store"
)

// Proofs declare that other hosts are dead: that they run no guest any more. There are three proofs,
// and no other: a fencing hook of this host's said that it is off, a person has said so, or it
// fences itself and its lease is over. An expired lease alone is told, and proves nothing: a host
// that is cut off goes on running its guests.
//
//	proof       who asks                 refused while its agent answers      what is kept
//	fenced      berth host fence         no: it is to be switched off;        who, and what the hooks said
//	                                     but where it answers afterwards
//	operator    berth host declare-dead  yes, unless he forces it             who, and why in his words
//	self_fence  whoever evacuates        yes                                  who
//
// Each is one durable record (fleet.Death), which an older one wins over; asking again gives the
// one that stands. It names the boot that ended, so that a host which was started again
// meanwhile is not taken for dead.
type Proofs struct {
	o Options

	// mu guards fencing; nothing happens under it.
	mu      sync.Mutex
	fencing map[string]string // hosts that hooks are switching off, and who has asked
}

// Options are what hosts are declared dead by.
type Options struct {
	Host    string // this one
	Records func() (*fleet.Records, error)
	Hooks   *hooks.Runner
	// Answers asks another host's agent whether it is there: nil where it is, else how it is not.
	Answers func(ctx context.Context, host string) error
	// Known says by whom a host without a record is known, empty for nobody.
	Known   func(ctx context.Context, host string) (by string, err error)
	Notes   Notes
	Runtime runtime.Runtime
	Logger  *slog.Logger
}

// Notes keep what a fencing hook is doing, over this agent's end.
type Notes interface {
	Get(ctx context.Context, bucket, key string) ([]byte, bool, error)
	Put(ctx context.Context, bucket, key string, value []byte) error
	Delete(ctx context.Context, bucket, key string) error
}

// New makes proofs; it asks nobody.
func New(o Options) *Proofs { return &Proofs{o: o} }

// keyFencing is under which the hook that is switching a host off is on record.
func keyFencing(host string) string { return "fencing/" + host }

// lastRecord bounds how long it is tried to write a death that its proof has been had for.
// Arbitrary: an election of etcd's, and some. Later the host may be on again.
const lastRecord = 20 * time.Second

// Declare implements api.Deaths.
func (d *Proofs) Declare(ctx context.Context, host, because, by string, force bool) (fleet.Death, error) {
	doing := "declare host " + host + " dead"
	records, h, err := d.dying(ctx, doing, host, force)
	if err != nil {
		return fleet.Death{}, err
	}
	if was, _, found, err := standingDeath(ctx, records, host); found || err != nil {
		return was, fault.Wrap(err, "%s", doing)
	}
	because = strings.TrimSpace(because)
	if because == "" {
		return fleet.Death{}, fault.Refuse(fault.Invalid, doing, fault.Reason{
			Code: "because_missing", Message: "it is not said how it is known that the host runs nothing", Change: "say so: --reason",
		})
	}
	silence := d.o.Answers(ctx, host)
	if silence == nil && !force {
		return fleet.Death{}, fault.Refuse(fault.Forbidden, doing, hostAnswers(host, "fence it (berth host fence "+host+"), or move its guests; --force takes your word all the same"))
	}
	death, err := declareSeen(records, h)(ctx, fleet.Death{Host: host, Proof: fleet.ProofOperator, By: by, Because: because, Boot: h.Boot})
	if err != nil {
		return fleet.Death{}, fault.Wrap(err, "%s", doing)
	}
	d.o.Logger.Warn("a host is dead by an operator's word: its guests can be evacuated", "host", host, "by", by, "because", because, "forced", silence == nil, "agent", words(silence))
	return death, nil
}

// List implements api.Deaths.
func (d *Proofs) List(ctx context.Context) ([]fleet.Death, error) {
	records, err := d.o.Records()
	if err != nil {
		return nil, err
	}
	list, err := records.Deaths(ctx)
	return list, fault.Wrap(fleet.StoreThere(err), "list the hosts that count as dead")
}

// Prove gives the death of a host with its revision: the one that stands, or, where the host
// fences itself and its lease is over, one that is written now. Else it is fault.Forbidden, with
// what is known of the host, an expired lease too, and what would be a proof; fault.Busy where its
// lease is over for too short a time (fleet.ReasonLeaseOverLately). It is what an evacuation asks.
func (d *Proofs) Prove(ctx context.Context, host, by string) (fleet.Death, uint64, error) {
	doing := "see a proof that host " + host + " is dead"
	records, err := d.o.Records()
	if err != nil {
		return fleet.Death{}, 0, err
	}
	death, revision, found, err := standingDeath(ctx, records, host)
	if found || err != nil {
		return death, revision, fault.Wrap(err, "%s", doing)
	}
	silence := d.o.Answers(ctx, host)
	if silence == nil {
		return fleet.Death{}, 0, fault.Refuse(fault.Forbidden, doing, hostAnswers(host, "move its guests: berth host drain "+host))
	}
	if _, err = records.DeclareDeadByLease(ctx, host, d.o.Host, by); err != nil {
		return fleet.Death{}, 0, d.noProof(ctx, doing, host, records, silence, err)
	}
	d.o.Logger.Warn("a host is dead: it fences itself, and its lease is over; its guests can be evacuated", "host", host, "by", by)
	death, revision, err = records.Dead(ctx, host)
	return death, revision, fault.Wrap(err, "%s", doing)
}

// standingDeath reads the death of a host; found is false where it does not count as dead.
func standingDeath(ctx context.Context, records *fleet.Records, host string) (d fleet.Death, revision uint64, found bool, err error) {
	d, revision, err = records.Dead(ctx, host)
	err = fleet.StoreThere(err)
	if errors.Is(err, fault.NotFound) {
		return fleet.Death{}, 0, false, nil
	}
	return d, revision, err == nil, err
}

// noProof tells all that is known of a host beside why nothing of it is a proof.
func (d *Proofs) noProof(ctx context.Context, doing, host string, records *fleet.Records, silence, why error) error {
	why = fleet.StoreThere(why)
	kind := fault.Forbidden
	if fault.HasReason(why, fleet.ReasonLeaseOverLately) {
		kind = fault.Busy // it is one soon: whoever evacuates waits
	} else if !errors.Is(why, fault.Forbidden) && !errors.Is(why, fault.NotFound) || fault.HasReason(why, fleet.NoStore) {
		return fault.Wrap(why, "%s", doing)
	}
	reasons := append([]fault.Reason{fleet.NotDead(host)}, fault.ReasonsOf(why)...)
	reasons = append(reasons, fault.Reason{Code: "host_silent", Message: "its agent does not answer " + d.o.Host + ": " + silence.Error()})
	if standingOf(ctx, records, host) == hooks.LeaseExpired {
		reasons = append(reasons, fault.Reason{Code: "lease_expired", Message: "its lease is over: it is down, or cut off and running its guests; that alone is no proof"})
	}
	return fault.Refuse(kind, doing, reasons...)
}

// declareSeen gives how a host is declared dead whose record was read as h: of one that had none, only
// while it has none.
func declareSeen(records *fleet.Records, h fleet.Host) func(context.Context, fleet.Death) (fleet.Death, error) {
	if h.Boot == "" && h.UpdatedAt.IsZero() {
		return records.DeclareDeadUnrecorded
	}
	return records.DeclareDead
}

// dying says whether a host can be declared dead at all, and reads its record. One without a record
// has to be known by another witness, or the operator insists.
func (d *Proofs) dying(ctx context.Context, doing, host string, force bool) (*fleet.Records, fleet.Host, error) {
	if host == d.o.Host {
		return nil, fleet.Host{}, fault.Refuse(fault.Invalid, doing, fault.Reason{
			Code: "own_host", Message: "this is host " + host + ", and it lives", Change: "ask another host's agent: -c HOST",
		})
	}
	records, err := d.o.Records()
	if err != nil {
		return nil, fleet.Host{}, err
	}
	h, err := records.Host(ctx, host)
	err = fleet.StoreThere(err)
	if errors.Is(err, fault.NotFound) {
		if err = d.unrecorded(ctx, doing, host, force); err != nil {
			return nil, fleet.Host{}, err
		}
		h = fleet.Host{Name: host}
	}
	if err == nil {
		err = records.MayDeclareDead(ctx, host) // before a hook switches the host off
	}
	return records, h, fault.Wrap(err, "%s", doing)
}

// unrecorded refuses a host that has no record and that nobody else knows: it may be a mistyped name.
func (d *Proofs) unrecorded(ctx context.Context, doing, host string, force bool) error {
	by, err := d.o.Known(ctx, host)
	if err == nil && by != "" || force {
		d.o.Logger.Warn("a host without a record is to be declared dead", "host", host, "known_by", by, "forced", force)
		return nil
	}
	r := fault.Reason{
		Code: "host_unknown", Message: "neither the fleet's records nor Placement have a host " + host, Want: host,
		Change: "see `berth host list` for the names; where this one is right: berth host declare-dead " + host + ` --reason "how you know" --force`,
	}
	if err != nil {
		r.Message = "the fleet's records have no host " + host + ", and Placement does not say whether it has one: " + err.Error()
	}
	return fault.Refuse(fault.NotFound, doing, r)
}

func hostAnswers(host, change string) fault.Reason {
	return fault.Reason{Code: "host_answers", Message: "host " + host + " is not dead: its agent answers", Have: host, Change: change}
}

// standingOf is how a host's lease is, as far as the store says.
func standingOf(ctx context.Context, records *fleet.Records, host string) string {
	alive, err := records.Alive(ctx)
	switch _, stands := alive[host]; {
	case err != nil:
		return hooks.LeaseUnknown
	case stands:
		return hooks.LeaseHeld
	}
	return hooks.LeaseExpired
}

// words are an error's, or none.
func words(err error) string {
	if err == nil {
		return "answers"
	}
	return err.Error()
}

// AnswerTimeout is how long another host's agent is given to answer. Arbitrary: a host that is up
// answers in milliseconds, and whoever asks has seen it silent.
const AnswerTimeout = 3 * time.Second

// Silent tells an error by which nothing of a host's agent was heard from what an agent said.
func Silent(err error) bool {
	return ended(err) || slices.ContainsFunc(fault.ReasonsOf(err), func(r fault.Reason) bool {
		// Whoever has another's certificate is not that host.
		return r.Code == "unreachable" || r.Code == "no_answer" || strings.HasPrefix(r.Code, "certificate")
	})
}

func ended(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// running is what is on record of a fencing hook.
type running struct {
	Process hooks.Process `json:"process"`
	By      string        `json:"by"`
	At      time.Time     `json:"at"`
}

// endLeft ends a fencing hook that an agent left behind when it died, or that was killed and did
// not end; hooks.ErrNotEnded while it does not.
func (d *Proofs) endLeft(ctx context.Context, host string) error {
	raw, found, err := d.o.Notes.Get(ctx, store.BucketAgent, keyFencing(host))
	if err != nil || !found {
		return err
	}
	var left running
	if err := json.Unmarshal(raw, &left); err != nil {
		return fmt.Errorf("read the record of a fencing hook: %w", err)
	}
	was, err := d.o.Hooks.End(left.Process)
	if was {
		d.o.Logger.Warn("ended a fencing hook that an earlier agent had left running", "host", host, "hook", left.Process.Hook, "unit", left.Process.Unit, "pid", left.Process.PID, "by", left.By)
	}
	return err
}
