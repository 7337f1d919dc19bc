package drivertest_test

import (
	"context"
	"sync"
	"time"

	"berth/driver"
)

// able is a driver with every ability.
type able interface {
	driver.Driver
	driver.LiveMigrator
	driver.StorageCopier
	driver.PostCopier
	driver.GuestAgent
	driver.Statistician
	driver.DeviceWatcher
	driver.Connector
	driver.PostCopyRecoverer
}

// broken is a driver in which one method does something else. Every method of
// able goes through twisted; one that does not is found out, because nothing that
// breaks it makes the suite fail.
type broken struct {
	able
	method string
	twist  func(a act) (any, error)

	mu sync.Mutex
	n  int
}

// act is one call of the broken method.
type act struct {
	able
	n    int // from 1, of this driver
	ctx  context.Context
	id   string                                 // of the domain; empty where there is none
	m    driver.Migration                       // of Migrate
	on   bool                                   // of Start and SetAutostart
	call func(ctx context.Context) (any, error) // as it should be
}

// well does what the method should.
func (a act) well() (any, error) { return a.call(a.ctx) }

// twisted is a method's answer, broken where it is the one.
func twisted[R any](b *broken, method string, a act, well func(ctx context.Context) (R, error)) (R, error) {
	if b.method != method {
		return well(a.ctx)
	}
	b.mu.Lock()
	b.n++
	a.n, a.able = b.n, b.able
	b.mu.Unlock()
	a.call = func(ctx context.Context) (any, error) { return well(ctx) }
	v, err := b.twist(a)
	out, _ := v.(R) // nil is R's zero
	return out, err
}

// does is twisted for methods that answer nothing but an error.
func does(b *broken, method string, a act, well func(ctx context.Context) error) error {
	_, err := twisted(b, method, a, func(ctx context.Context) (struct{}, error) { return struct{}{}, well(ctx) })
	return err
}

func (b *broken) Node(ctx context.Context) (driver.Node, error) {
	return twisted(b, "Node", act{ctx: ctx}, b.able.Node)
}

func (b *broken) Domains(ctx context.Context) ([]driver.Domain, error) {
	return twisted(b, "Domains", act{ctx: ctx}, b.able.Domains)
}

func (b *broken) Domain(ctx context.Context, id string) (driver.Domain, error) {
	return twisted(b, "Domain", act{ctx: ctx, id: id}, func(ctx context.Context) (driver.Domain, error) { return b.able.Domain(ctx, id) })
}

func (b *broken) XML(ctx context.Context, id string, what driver.Document) (string, error) {
	return twisted(b, "XML", act{ctx: ctx, id: id}, func(ctx context.Context) (string, error) { return b.able.XML(ctx, id, what) })
}

func (b *broken) Define(ctx context.Context, xml string) error {
	return does(b, "Define", act{ctx: ctx, id: uuidOf(xml)}, func(ctx context.Context) error { return b.able.Define(ctx, xml) })
}

func (b *broken) Undefine(ctx context.Context, id string) error {
	return does(b, "Undefine", act{ctx: ctx, id: id}, func(ctx context.Context) error { return b.able.Undefine(ctx, id) })
}

func (b *broken) Saved(ctx context.Context, id string) (driver.Saved, error) {
	return twisted(b, "Saved", act{ctx: ctx, id: id}, func(ctx context.Context) (driver.Saved, error) { return b.able.Saved(ctx, id) })
}

func (b *broken) DiscardSavedMemory(ctx context.Context, id string) error {
	return does(b, "DiscardSavedMemory", act{ctx: ctx, id: id}, func(ctx context.Context) error { return b.able.DiscardSavedMemory(ctx, id) })
}

func (b *broken) Start(ctx context.Context, id string, paused bool) error {
	return does(b, "Start", act{ctx: ctx, id: id, on: paused}, func(ctx context.Context) error { return b.able.Start(ctx, id, paused) })
}

func (b *broken) Suspend(ctx context.Context, id string) error {
	return does(b, "Suspend", act{ctx: ctx, id: id}, func(ctx context.Context) error { return b.able.Suspend(ctx, id) })
}

func (b *broken) Resume(ctx context.Context, id string) error {
	return does(b, "Resume", act{ctx: ctx, id: id}, func(ctx context.Context) error { return b.able.Resume(ctx, id) })
}

func (b *broken) Shutdown(ctx context.Context, id string) error {
	return does(b, "Shutdown", act{ctx: ctx, id: id}, func(ctx context.Context) error { return b.able.Shutdown(ctx, id) })
}

func (b *broken) Destroy(ctx context.Context, id string) error {
	return does(b, "Destroy", act{ctx: ctx, id: id}, func(ctx context.Context) error { return b.able.Destroy(ctx, id) })
}

func (b *broken) SetAutostart(ctx context.Context, id string, on bool) error {
	return does(b, "SetAutostart", act{ctx: ctx, id: id, on: on}, func(ctx context.Context) error { return b.able.SetAutostart(ctx, id, on) })
}

func (b *broken) Events(ctx context.Context) (<-chan driver.Event, error) {
	return twisted(b, "Events", act{ctx: ctx}, b.able.Events)
}

func (b *broken) Health() error {
	return does(b, "Health", act{ctx: context.Background()}, func(context.Context) error { return b.able.Health() })
}

func (b *broken) Close() error {
	return does(b, "Close", act{ctx: context.Background()}, func(context.Context) error { return b.able.Close() })
}

func (b *broken) CheckCPU(ctx context.Context, xml string) error {
	return does(b, "CheckCPU", act{ctx: ctx}, func(ctx context.Context) error { return b.able.CheckCPU(ctx, xml) })
}

func (b *broken) Migrate(ctx context.Context, id string, m driver.Migration) error {
	return does(b, "Migrate", act{ctx: ctx, id: id, m: m}, func(ctx context.Context) error { return b.able.Migrate(ctx, id, m) })
}

func (b *broken) Job(ctx context.Context, id string) (driver.Job, error) {
	return twisted(b, "Job", act{ctx: ctx, id: id}, func(ctx context.Context) (driver.Job, error) { return b.able.Job(ctx, id) })
}

func (b *broken) CompletedJob(ctx context.Context, id string) (driver.Job, error) {
	return twisted(b, "CompletedJob", act{ctx: ctx, id: id}, func(ctx context.Context) (driver.Job, error) { return b.able.CompletedJob(ctx, id) })
}

func (b *broken) AbortJob(ctx context.Context, id string) error {
	return does(b, "AbortJob", act{ctx: ctx, id: id}, func(ctx context.Context) error { return b.able.AbortJob(ctx, id) })
}

func (b *broken) SetMaxDowntime(ctx context.Context, id string, d time.Duration) error {
	return does(b, "SetMaxDowntime", act{ctx: ctx, id: id}, func(ctx context.Context) error { return b.able.SetMaxDowntime(ctx, id, d) })
}

func (b *broken) SetBandwidth(ctx context.Context, id string, bytesPerSecond uint64) error {
	return does(b, "SetBandwidth", act{ctx: ctx, id: id}, func(ctx context.Context) error { return b.able.SetBandwidth(ctx, id, bytesPerSecond) })
}

func (b *broken) DiskCopies(ctx context.Context, id string) (map[string]driver.DiskCopy, error) {
	return twisted(b, "DiskCopies", act{ctx: ctx, id: id}, func(ctx context.Context) (map[string]driver.DiskCopy, error) { return b.able.DiskCopies(ctx, id) })
}

func (b *broken) StartPostCopy(ctx context.Context, id string) error {
	return does(b, "StartPostCopy", act{ctx: ctx, id: id}, func(ctx context.Context) error { return b.able.StartPostCopy(ctx, id) })
}

func (b *broken) FailPostCopy(ctx context.Context, id string) error {
	return does(b, "FailPostCopy", act{ctx: ctx, id: id}, func(ctx context.Context) error { return b.able.FailPostCopy(ctx, id) })
}

func (b *broken) RecoverPostCopy(ctx context.Context, id string, m driver.Migration) error {
	return does(b, "RecoverPostCopy", act{ctx: ctx, id: id, m: m}, func(ctx context.Context) error { return b.able.RecoverPostCopy(ctx, id, m) })
}

func (b *broken) PingAgent(ctx context.Context, id string) error {
	return does(b, "PingAgent", act{ctx: ctx, id: id}, func(ctx context.Context) error { return b.able.PingAgent(ctx, id) })
}

func (b *broken) FreezeFilesystems(ctx context.Context, id string) (int, error) {
	return twisted(b, "FreezeFilesystems", act{ctx: ctx, id: id}, func(ctx context.Context) (int, error) { return b.able.FreezeFilesystems(ctx, id) })
}

func (b *broken) ThawFilesystems(ctx context.Context, id string) (int, error) {
	return twisted(b, "ThawFilesystems", act{ctx: ctx, id: id}, func(ctx context.Context) (int, error) { return b.able.ThawFilesystems(ctx, id) })
}

func (b *broken) Statistics(ctx context.Context) ([]driver.Usage, error) {
	return twisted(b, "Statistics", act{ctx: ctx}, b.able.Statistics)
}

func (b *broken) HostDevices(ctx context.Context) ([]driver.HostDevice, error) {
	return twisted(b, "HostDevices", act{ctx: ctx}, b.able.HostDevices)
}

func (b *broken) DeviceEvents(ctx context.Context) (<-chan driver.DeviceEvent, error) {
	return twisted(b, "DeviceEvents", act{ctx: ctx}, b.able.DeviceEvents)
}

func (b *broken) Network(ctx context.Context, name string) (driver.Network, error) {
	return twisted(b, "Network", act{ctx: ctx}, func(ctx context.Context) (driver.Network, error) { return b.able.Network(ctx, name) })
}

func (b *broken) Pool(ctx context.Context, name string) (driver.Pool, error) {
	return twisted(b, "Pool", act{ctx: ctx}, func(ctx context.Context) (driver.Pool, error) { return b.able.Pool(ctx, name) })
}

func (b *broken) OpenPool(ctx context.Context, name string) error {
	return does(b, "OpenPool", act{ctx: ctx, id: name}, func(ctx context.Context) error { return b.able.OpenPool(ctx, name) })
}

func (b *broken) ClosePool(ctx context.Context, name string) error {
	return does(b, "ClosePool", act{ctx: ctx, id: name}, func(ctx context.Context) error { return b.able.ClosePool(ctx, name) })
}

func (b *broken) Volume(ctx context.Context, pool, name string) (driver.Volume, error) {
	return twisted(b, "Volume", act{ctx: ctx}, func(ctx context.Context) (driver.Volume, error) { return b.able.Volume(ctx, pool, name) })
}

func (b *broken) Secret(ctx context.Context, s driver.SecretRef) error {
	return does(b, "Secret", act{ctx: ctx}, func(ctx context.Context) error { return b.able.Secret(ctx, s) })
}
