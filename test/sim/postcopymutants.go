package sim

import (
	"context"
	"strings"
	"time"

	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/migration"
)

// liveMutants are the breakages of live moves that wait for each other, and of post-copy.
func liveMutants() []Mutant {
	return []Mutant{
		{Name: "outbound-unbounded", What: "any number of live moves leave a host at once", Unbounded: ofHost},
		{Name: "link-unbounded", What: "any number of live moves go between two hosts at once", Unbounded: ofLink},
		{Name: "post-copy-unrecorded", Halves: true, What: "a guest is in post-copy before it is on record that it will be",
			Ledger: func(_ *agent, s ledger) claims.Store { return lateRecord{s, "/post_copy_asked"} }},
		{Name: "post-copy-not-recovered", Halves: true, What: "a post-copy that broke is never made whole",
			PostCopy: func(_ *agent, h *host.Host) migration.PostCopySource { return noRecovery{h} }},
		{Name: "half-counts-as-left", Halves: true, What: "a source in post-copy counts as one that all memory has left",
			Calls: func(_ *agent, l libvirt) driver.Driver { return leftEarly{l} }},
	}
}

// lateRecord says that some records are durable long before they are.
type lateRecord struct {
	ledger
	suffix string
}

func (s lateRecord) Enqueue(mutations ...store.Mutation) *store.Pending {
	if len(mutations) == 0 || !strings.HasSuffix(mutations[0].Key, s.suffix) || mutations[0].Value == nil {
		return s.ledger.Enqueue(mutations...)
	}
	p, settle := store.NewPending(nil)
	settle(nil)
	a := s.a
	a.process.Go("late commit", func() {
		_ = a.process.Sleep(context.Background(), 5*time.Second)
		_ = s.ledger.Enqueue(mutations...).Wait()
	})
	return p
}

type noRecovery struct{ migration.PostCopySource }

func (noRecovery) RecoverPostCopy(context.Context, migration.Ref, migration.Stream) error {
	return fault.New(fault.Unavailable, "no")
}

type leftEarly struct{ libvirt }

func (l leftEarly) Domain(ctx context.Context, uuid string) (driver.Domain, error) {
	d, err := l.libvirt.Domain(ctx, uuid)
	if d.Reason == driver.ReasonPostCopy && d.State == driver.Paused {
		d.State, d.Reason = driver.ShutOff, driver.ReasonMigrated
	}
	return d, err
}
