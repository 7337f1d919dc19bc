package sim

import (
	"context"
	"time"

	"berth/driver"
	"berth/driver/drivertest"
	"berth/internal/fault"
)

// libvirt is a machine's hypervisor as one life of its agent uses it. A job that was
// begun goes on when the agent dies.
type libvirt struct {
	*drivertest.Fake
	a *agent
}

var (
	_ driver.LiveMigrator  = libvirt{}
	_ driver.StorageCopier = libvirt{}
)

// ask is one call.
func ask[T any](ctx context.Context, l libvirt, k kind, what string, f func(context.Context) (T, error)) (T, error) {
	var zero T
	w, m := l.a.w, l.a.m
	call := "libvirt " + what
	silent := func() error {
		_ = l.a.process.Sleep(ctx, silence)
		if k == ofLook {
			return fault.New(fault.Unavailable, "%s on %s: no answer", what, m.name)
		}
		return fault.New(fault.InDoubt, "%s on %s: no answer", what, m.name)
	}
	how := w.before(l.a, k, call)
	switch how {
	case requestLost, requestLate: // libvirt's own connection delivers in order, so late is never
		return zero, silent()
	case refused:
		return zero, fault.New(fault.Unavailable, "%s on %s: internal error", what, m.name)
	}
	v, err := f(ctx)
	w.after(l.a, k, call)
	if how == answerLost && err == nil {
		return zero, silent()
	}
	return v, err
}

// silence is how long somebody waits before an answer counts as lost.
const silence = time.Second

func (l libvirt) do(ctx context.Context, what string, f func(context.Context) error) error {
	_, err := ask(ctx, l, ofDriver, what, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
	return err
}

func (l libvirt) Node(ctx context.Context) (driver.Node, error) {
	return ask(ctx, l, ofLook, "Node", l.Fake.Node)
}

func (l libvirt) Domains(ctx context.Context) ([]driver.Domain, error) {
	return ask(ctx, l, ofLook, "Domains", l.Fake.Domains)
}

func (l libvirt) Domain(ctx context.Context, uuid string) (driver.Domain, error) {
	return ask(ctx, l, ofLook, "Domain", func(ctx context.Context) (driver.Domain, error) { return l.Fake.Domain(ctx, uuid) })
}

func (l libvirt) XML(ctx context.Context, uuid string, what driver.Document) (string, error) {
	return ask(ctx, l, ofLook, "XML", func(ctx context.Context) (string, error) { return l.Fake.XML(ctx, uuid, what) })
}

func (l libvirt) CheckCPU(ctx context.Context, xml string) error {
	_, err := ask(ctx, l, ofLook, "CheckCPU", func(ctx context.Context) (struct{}, error) { return struct{}{}, l.Fake.CheckCPU(ctx, xml) })
	return err
}

func (l libvirt) Job(ctx context.Context, uuid string) (driver.Job, error) {
	return ask(ctx, l, ofLook, "Job", func(ctx context.Context) (driver.Job, error) { return l.Fake.Job(ctx, uuid) })
}

func (l libvirt) CompletedJob(ctx context.Context, uuid string) (driver.Job, error) {
	return ask(ctx, l, ofLook, "CompletedJob", func(ctx context.Context) (driver.Job, error) { return l.Fake.CompletedJob(ctx, uuid) })
}

func (l libvirt) Define(ctx context.Context, xml string) error {
	return l.do(ctx, "Define", func(ctx context.Context) error { return l.Fake.Define(ctx, xml) })
}

func (l libvirt) Undefine(ctx context.Context, uuid string) error {
	return l.do(ctx, "Undefine", func(ctx context.Context) error { return l.Fake.Undefine(ctx, uuid) })
}

func (l libvirt) Saved(ctx context.Context, uuid string) (driver.Saved, error) {
	return ask(ctx, l, ofLook, "Saved", func(ctx context.Context) (driver.Saved, error) { return l.Fake.Saved(ctx, uuid) })
}

func (l libvirt) DiscardSavedMemory(ctx context.Context, uuid string) error {
	return l.do(ctx, "DiscardSavedMemory", func(ctx context.Context) error {
		err := l.Fake.DiscardSavedMemory(ctx, uuid)
		if g := l.a.w.guestOf(uuid); err == nil && g != nil {
			l.a.w.discards(g, l.a.m.name)
		}
		return err
	})
}

func (l libvirt) Start(ctx context.Context, uuid string, paused bool) error {
	return l.do(ctx, "Start", func(ctx context.Context) error { return l.Fake.Start(ctx, uuid, paused) })
}

func (l libvirt) Suspend(ctx context.Context, uuid string) error {
	return l.do(ctx, "Suspend", func(ctx context.Context) error { return l.Fake.Suspend(ctx, uuid) })
}

func (l libvirt) Resume(ctx context.Context, uuid string) error {
	return l.do(ctx, "Resume", func(ctx context.Context) error { return l.Fake.Resume(ctx, uuid) })
}

func (l libvirt) Shutdown(ctx context.Context, uuid string) error {
	return l.do(ctx, "Shutdown", func(ctx context.Context) error { return l.stop(ctx, uuid, l.Fake.Shutdown) })
}

func (l libvirt) Destroy(ctx context.Context, uuid string) error {
	return l.do(ctx, "Destroy", func(ctx context.Context) error { return l.stop(ctx, uuid, l.Fake.Destroy) })
}

// stop stops a guest on the agent's word, and looks who it was.
func (l libvirt) stop(ctx context.Context, uuid string, stop func(context.Context, string) error) error {
	w := l.a.w
	w.look()
	w.stopping = [2]string{l.a.m.name, uuid}
	err := stop(ctx, uuid)
	w.look()
	w.stopping = [2]string{}
	return err
}

func (l libvirt) SetAutostart(ctx context.Context, uuid string, on bool) error {
	return l.do(ctx, "SetAutostart", func(ctx context.Context) error { return l.Fake.SetAutostart(ctx, uuid, on) })
}

func (l libvirt) AbortJob(ctx context.Context, uuid string) error {
	return l.do(ctx, "AbortJob", func(ctx context.Context) error { return l.Fake.AbortJob(ctx, uuid) })
}

// Migrate lasts as long as the migration, and its job goes on when the agent dies.
func (l libvirt) Migrate(ctx context.Context, uuid string, m driver.Migration) error {
	_, err := ask(ctx, l, ofDriver, "Migrate", func(ctx context.Context) (struct{}, error) {
		l.a.w.streamAsked(l.a, uuid, m)
		return struct{}{}, l.Fake.Migrate(ctx, uuid, m)
	})
	return err
}
