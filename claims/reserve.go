package claims

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/google/uuid"

	"berth/claims/fit"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/topology"
)

// Request asks for a claim.
type Request struct {
	Owner     Owner
	Resources topology.Resources
	Step      string            // the verb's step, for tombstones; "" for StepClaim
	Context   *MigrationContext // recorded with the claim, in one commit; nil for kind instance
	Lease     time.Duration     // 0 for the tracker's default
}

// StepClaim is the step that Claim and Abort take when none is named.
const StepClaim = "claim"

func stepOr(step, fallback string) string {
	if step == "" {
		return fallback
	}
	return step
}

// Refuse makes the tracker give no new claims, for the reason told to every
// caller: a first start with no inventory, a shutdown. Everything else works:
// adoption, moves under way, releases.
func (t *Tracker) Refuse(reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refusal = reason
}

// Allow ends Refuse.
func (t *Tracker) Allow() { t.Refuse("") }

// SetCapacity changes what the host has to give, from now on. It never takes a
// claim away: a host that shrank below its claims just has nothing free.
func (t *Tracker) SetCapacity(c Capacity) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.capacity = c
}

// Usage gives the sums at one moment.
func (t *Tracker) Usage() Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := Usage{Capacity: t.capacity, Free: t.hostLocked(nil).Free()}
	for _, e := range t.claims {
		if !e.told {
			continue
		}
		u.Used = u.Used.Add(e.claim.Resources)
		if e.claim.Forced {
			u.Forced = append(u.Forced, e.claim.Owner.Instance)
		}
	}
	slices.Sort(u.Forced)
	return u
}

// hostLocked is the host as the arithmetic sees it: the sum of all claims, those
// on their way in and those not durably out included, but not except.
func (t *Tracker) hostLocked(except *entry) fit.Host {
	c := t.capacity
	h := fit.Host{Total: c.Total, Reserved: c.Reserved, CPURatio: c.CPURatio, RAMRatio: c.RAMRatio, DiskRatio: c.DiskRatio}
	for _, e := range t.claims {
		if e != except {
			h.Used = h.Used.Add(e.counted)
		}
	}
	return h
}

// Check answers whether a claim of this size could be had now, as Claim would,
// and takes nothing: fault.DoesNotFit with every reason, fault.Unavailable
// after Refuse.
func (t *Tracker) Check(r topology.Resources) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.roomLocked(fmt.Sprintf("claim %s on %s", r, t.host), r)
}

// CheckClaim answers whether Claim would grant this request now, with every
// reason why not, and takes nothing.
func (t *Tracker) CheckClaim(r Request) error {
	if err := r.validate(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, err := t.admitLocked(r)
	return err
}

// roomLocked is the arithmetic.
func (t *Tracker) roomLocked(doing string, r topology.Resources) error {
	if t.refusal != "" {
		return fault.Refuse(fault.Unavailable, doing, fault.Reason{
			Code: "no_new_claims", Message: "no new claims are given: " + t.refusal, Change: "see the host's status",
		})
	}
	if reasons := fit.Fits(r, t.hostLocked(nil)); len(reasons) > 0 {
		return fault.Refuse(fault.DoesNotFit, doing, reasonsOf(reasons)...)
	}
	return nil
}

func reasonsOf(reasons []fit.Reason) []fault.Reason {
	out := make([]fault.Reason, len(reasons))
	for i, r := range reasons {
		out[i] = fault.Reason(r)
	}
	return out
}

// Claim holds resources for an owner, pending under a lease, with its
// MigrationContext in the same commit, and a ticket for a migration's.
//
// Repeated by the same owner for the same amounts it gives the same claim, in
// whatever state it is by now. Refusals: fault.DoesNotFit with every class that
// is short; fault.Exists when the owner holds other amounts, or the instance
// lives here already; fault.Busy while another move of the instance has a claim
// here; fault.Forbidden when the claim was aborted (a tombstone stands), or when
// its migration has brought the guest here before;
// fault.Unavailable after Refuse.
func (t *Tracker) Claim(ctx context.Context, r Request) (Claim, error) {
	if err := r.validate(); err != nil {
		return Claim{}, err
	}
	var answer Claim
	err := t.change(ctx, subjects(r.Owner.Instance, r.Owner.Migration), func() (plan, error) {
		existing, err := t.admitLocked(r)
		if err != nil {
			return plan{}, err
		}
		if existing != nil {
			answer = existing.claim.clone()
			return plan{}, nil
		}
		c, err := t.newClaimLocked(r)
		if err != nil {
			return plan{}, err
		}
		answer = c.clone()
		return t.insertLocked(c), nil
	})
	if err != nil {
		return Claim{}, err
	}
	return answer, nil
}

// insertLocked counts a new claim at once and shows it when it is durable.
func (t *Tracker) insertLocked(c Claim) plan {
	e := &entry{claim: c, counted: c.Resources}
	t.claims[c.ID] = e
	return plan{
		mutations: []store.Mutation{put(bucketClaims, c.ID, c)},
		apply:     func() { e.told = true },
		revert:    func() { delete(t.claims, c.ID) },
	}
}

// admitLocked decides on a request: the claim that its owner has already, or
// nil and nil when a new one may be made.
func (t *Tracker) admitLocked(r Request) (*entry, error) {
	doing := fmt.Sprintf("claim %s for instance %s on %s", r.Resources, r.Owner.Instance, t.host)
	if ref := r.ref(); t.buriedLocked(ref) {
		return nil, late(ref)
	}
	if e := t.findLocked(r.Owner); e != nil {
		if e.claim.Resources != r.Resources {
			return nil, fault.Refuse(fault.Exists, doing, fault.Reason{
				Code:    "claim_differs",
				Message: fmt.Sprintf("the same owner holds %s already", e.claim.Resources),
				Want:    r.Resources.String(), Have: e.claim.Resources.String(),
				Change: "abort or release that claim first",
			})
		}
		return e, nil
	}
	if accepted := t.migrations[r.Owner.Migration].Accepted; accepted > 0 {
		return nil, fault.Refuse(fault.Forbidden, doing, goneOn(r.Owner.Migration, accepted))
	}
	if err := t.admitOwnerLocked(doing, r.Owner); err != nil {
		return nil, err
	}
	return nil, t.roomLocked(doing, r.Resources)
}

// admitOwnerLocked refuses what would give an instance two claims for one thing.
// A resize or rebuild on its own host holds a second one beside the instance's;
// a guest that comes from elsewhere may have none here yet.
func (t *Tracker) admitOwnerLocked(doing string, o Owner) error {
	comes := o.Kind == KindLiveMigration || o.Kind == KindEvacuation
	if i, ok := t.instances[o.Instance]; ok && comes && i.Token.State == TokenHere {
		return livesHere(doing, o.Instance, "this host owns it")
	}
	for _, e := range t.claims {
		other := e.claim.Owner
		switch {
		case other.Instance != o.Instance:
		case other.Kind == KindInstance && (comes || o.Kind == KindInstance):
			return livesHere(doing, o.Instance, "it has a claim here, "+string(e.claim.State))
		case other.Kind != KindInstance:
			return fault.Refuse(fault.Busy, doing, fault.Reason{
				Code: "instance_is_moving",
				Message: fmt.Sprintf("attempt %d of migration %s has a claim for it here, %s",
					other.Attempt, other.Migration, e.claim.State),
				Have: other.Migration, Change: "wait for that migration's end, or abort it",
			})
		}
	}
	return nil
}

func livesHere(doing, instance, how string) error {
	return fault.Refuse(fault.Exists, doing, fault.Reason{
		Code: "instance_lives_here", Message: "the instance lives here already: " + how,
		Have: instance, Change: "choose another host, or clean up what is left of it here",
	})
}

// findLocked gives the claim of an owner, also when it has become the
// instance's.
func (t *Tracker) findLocked(o Owner) *entry {
	for _, e := range t.claims {
		if e.claim.Owner == o || e.claim.BoundFrom != nil && *e.claim.BoundFrom == o {
			return e
		}
	}
	return nil
}

func (r Request) ref() Ref {
	return Ref{r.Owner.Migration, r.Owner.Instance, r.Owner.Attempt, stepOr(r.Step, StepClaim)}
}

func (r Request) validate() error {
	err := func(format string, args ...any) error {
		return fault.New(fault.Invalid, "claim for instance %q: "+format, append([]any{r.Owner.Instance}, args...)...)
	}
	if e := validUUIDs(r.Owner.Instance, r.Owner.Migration); e != nil {
		return err("%w", e)
	}
	switch r.Owner.Kind {
	case KindInstance:
		if r.Owner.Migration != "" || r.Owner.Attempt != 0 {
			return err("a claim of kind instance names no migration")
		}
	case KindLiveMigration, KindResize, KindRebuild, KindEvacuation:
		if r.Owner.Migration == "" || r.Owner.Attempt < 1 {
			return err("a claim of kind %s names its migration and attempt", r.Owner.Kind)
		}
	default:
		return err("kind %q", r.Owner.Kind)
	}
	if c := r.Context; c != nil && (c.Migration != r.Owner.Migration || c.Instance != r.Owner.Instance) {
		return err("its context is of instance %q and migration %q", c.Instance, c.Migration)
	}
	if e := validResources(r.Resources); e != nil {
		return err("%w", e)
	}
	if r.Lease < 0 {
		return err("lease of %s", r.Lease)
	}
	return nil
}

func validResources(r topology.Resources) error {
	const most = 1 << 40 // keeps every sum far from overflow
	if r.VCPUs < 0 || r.PCPUs < 0 || int64(r.VCPUs) > most || int64(r.PCPUs) > most || r.VCPUs+r.PCPUs < 1 ||
		r.MemoryMB < 1 || r.DiskGB < 0 || r.MemoryMB > most || r.DiskGB > most {
		return fmt.Errorf("resources %s: want at least 1 vcpu and 1 MiB", r)
	}
	return nil
}

// validUUIDs refuses what could not be part of a key: the instance must be
// named, the migration may be empty. Whether it is a uuid is its maker's affair.
func validUUIDs(instance, migration string) error {
	if !validName(instance) {
		return fmt.Errorf("instance %q is not a name", instance)
	}
	if migration != "" && !validName(migration) {
		return fmt.Errorf("migration %q is not a name", migration)
	}
	return nil
}

// validName takes what may stand between the slashes of a key.
func validName(s string) bool {
	if s == "" || len(s) > 255 {
		return false
	}
	for _, c := range []byte(s) {
		if c <= ' ' || c == '/' || c == 0x7f {
			return false
		}
	}
	return true
}

// newClaimLocked makes a pending claim.
func (t *Tracker) newClaimLocked(r Request) (Claim, error) {
	id, err := uuid.NewRandomFromReader(t.random)
	if err != nil {
		return Claim{}, fault.New(fault.Internal, "make claim uuid: %w", err)
	}
	if _, taken := t.claims[id.String()]; taken {
		return Claim{}, fault.New(fault.Internal, "make claim uuid: the source of random numbers repeats itself (%s)", id)
	}
	boot := t.runtime.Boot()
	c := Claim{
		ID: id.String(), Owner: r.Owner, State: Pending, Resources: r.Resources,
		Lease: &Lease{Length: r.Lease}, CreatedAt: t.runtime.Now().UTC(), Boot: boot.ID,
	}
	if c.Lease.Length == 0 {
		c.Lease.Length = t.lease
	}
	c.Lease.renew(boot)
	if r.Context != nil {
		x := r.Context.clone()
		c.Context = &x
	}
	if r.Owner.Migration != "" {
		secret := make([]byte, 32)
		if _, err := io.ReadFull(t.random, secret); err != nil {
			return Claim{}, fault.New(fault.Internal, "make ticket: %w", err)
		}
		c.Ticket = hex.EncodeToString(secret)
	}
	return c, nil
}
