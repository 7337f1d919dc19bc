package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"berth/driver"
	"berth/driver/libvirt"
	"berth/driver/libvirt/rpc"
	"berth/internal/fault"
	"berth/migration/converge"
	"berth/test/guest"
	"berth/test/lab"
)

// poll is between two looks, as a conductor's.
const poll = 250 * time.Millisecond

// workload is a guest, how it is sent, and what happens on the way.
type workload struct {
	name   string
	guest  guest.Options
	how    driver.Migration
	disk   int           // MiB of a disk that is copied; 0: no disk
	events []event       // by time
	give   time.Duration // after which the job is ended
}

// event happens at a time after the job's start.
type event struct {
	at time.Duration
	do func(ctx context.Context, w *workload, src *libvirt.Driver, a, b *lab.Host, uuid string) error
}

const mib = 1 << 20

// impossible changes all of its 64 MiB while they are sent once.
var impossible = guest.Options{MemoryMiB: 160, Dirty: 64, Rate: 60}

var workloads = []workload{
	{name: "idle", guest: guest.Options{Dirty: -1}, how: driver.Migration{Bandwidth: 20 * mib}},
	{name: "moderate", guest: guest.Options{Dirty: 48, Rate: 14}, how: driver.Migration{Bandwidth: 20 * mib, MaxDowntime: 200 * time.Millisecond}},
	{name: "impossible", guest: impossible, how: driver.Migration{Bandwidth: 20 * mib}, give: 40 * time.Second},
	{name: "saw-tooth", guest: guest.Options{MemoryMiB: 160, Dirty: 64, Rate: 60, Busy: 6 * time.Second, Quiet: 2500 * time.Millisecond},
		how: driver.Migration{Bandwidth: 20 * mib, MaxDowntime: 100 * time.Millisecond}, give: 50 * time.Second},
	{name: "link-drop", guest: guest.Options{Dirty: 48, Rate: 24}, how: driver.Migration{Bandwidth: 20 * mib}, give: 45 * time.Second,
		events: []event{{14 * time.Second, cut}, {20 * time.Second, heal}}},
	{name: "auto-converge", guest: impossible, how: driver.Migration{Bandwidth: 20 * mib, AutoConverge: true}, give: 90 * time.Second},
	{name: "disk-first", guest: impossible, disk: 256, how: driver.Migration{Bandwidth: 20 * mib}, give: 40 * time.Second},
	{name: "suspend", guest: impossible, how: driver.Migration{Bandwidth: 20 * mib}, events: []event{{18 * time.Second, suspend}}},
	{name: "downtime", guest: impossible, how: driver.Migration{Bandwidth: 20 * mib}, events: []event{{18 * time.Second, raise}}},
}

func cut(ctx context.Context, _ *workload, _ *libvirt.Driver, _, b *lab.Host, _ string) error {
	return b.Cut(ctx, lab.Mig)
}

func heal(ctx context.Context, _ *workload, _ *libvirt.Driver, _, b *lab.Host, _ string) error {
	return b.Heal(ctx, lab.Mig)
}

func suspend(ctx context.Context, _ *workload, src *libvirt.Driver, _, _ *lab.Host, uuid string) error {
	return src.Suspend(ctx, uuid)
}

func raise(ctx context.Context, _ *workload, src *libvirt.Driver, _, _ *lab.Host, uuid string) error {
	return src.SetMaxDowntime(ctx, uuid, 6*time.Second)
}

// record sends the guest once, and gives what was seen and how it ended.
func (w *workload) record(ctx context.Context, a, b *lab.Host) (samples []converge.Sample, ended string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	connect := func(h *lab.Host) *libvirt.Driver {
		return libvirt.New(libvirt.Options{Dial: rpc.Dial, Socket: h.LibvirtSocket()})
	}
	src, dst := connect(a), connect(b)
	defer func() { err = errors.Join(err, src.Close(), dst.Close()) }()

	uuid, err := w.boot(ctx, src, a, b)
	if err != nil {
		return nil, "", err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		for _, d := range []*libvirt.Driver{src, dst} {
			if gone := d.Destroy(ctx, uuid); !errors.Is(gone, fault.NotFound) {
				err = errors.Join(err, gone, d.Undefine(ctx, uuid))
			}
		}
	}()
	m, err := w.order(ctx, src, uuid, b)
	if err != nil {
		return nil, "", err
	}
	over := make(chan error, 1)
	begun := time.Now()
	go func() { over <- src.Migrate(ctx, uuid, m) }()
	left, given := w.events, false
	for tick := time.NewTicker(poll); ; {
		select {
		case err := <-over:
			tick.Stop()
			ended = "arrived"
			if err != nil {
				ended = err.Error()
			}
			if err != nil && !given {
				return samples, ended, err
			}
			return samples, ended, nil
		case <-tick.C:
		}
		at := time.Since(begun)
		for len(left) > 0 && at >= left[0].at {
			if err := left[0].do(ctx, w, src, a, b, uuid); err != nil {
				return samples, "", err
			}
			left = left[1:]
		}
		if w.give > 0 && at >= w.give && !given {
			given = true
			if err := src.AbortJob(ctx, uuid); err != nil {
				return samples, "", err
			}
		}
		job, err := src.Job(ctx, uuid)
		if err != nil {
			return samples, "", err
		}
		d, err := src.Domain(ctx, uuid)
		if err != nil {
			return samples, "", err
		}
		if job.InFlight() && !given {
			samples = append(samples, sample(at, job, d))
		}
	}
}

// boot defines the guest, and waits until it is at its work.
func (w *workload) boot(ctx context.Context, src *libvirt.Driver, a, b *lab.Host) (uuid string, err error) {
	o := w.guest
	o.Name, o.Beat = "series-"+w.name, 250*time.Millisecond
	if w.disk > 0 {
		inside := "/var/lib/libvirt/" + o.Name + ".raw" // each host's own
		content := make([]byte, w.disk*mib)
		if err := os.WriteFile(b.Path(inside), content, 0o666); err != nil {
			return "", err
		}
		_, _ = rand.Read(content) // never fails
		if err := os.WriteFile(a.Path(inside), content, 0o666); err != nil {
			return "", err
		}
		for _, h := range []*lab.Host{a, b} { // whatever the umask is
			if err := os.Chmod(h.Path(inside), 0o666); err != nil {
				return "", err
			}
		}
		o.Disks = []guest.Disk{{Path: inside, Format: "raw"}}
		w.how.CopyDisks = []string{"vda"}
	}
	if err := src.Define(ctx, guest.DomainXML(o)); err != nil {
		return "", err
	}
	all, err := src.Domains(ctx)
	if err != nil {
		return "", err
	}
	for _, d := range all {
		if d.Name == o.Name {
			uuid = d.UUID
		}
	}
	if err := src.Start(ctx, uuid, false); err != nil {
		return "", err
	}
	working, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for n := 8; ; n += 4 {
		beats, err := guest.WaitBeat(working, a.Console(o.Name), n)
		if err != nil {
			return "", err
		}
		if o.Dirty < 0 || beats[len(beats)-1].Passes > 0 {
			return uuid, nil
		}
	}
}

// order is how the guest is sent: paused at its arrival, as Berth has it.
func (w *workload) order(ctx context.Context, src *libvirt.Driver, uuid string, b *lab.Host) (driver.Migration, error) {
	m := w.how
	m.DestinationURI, m.MigrateURI, m.Paused = "qemu+tls://"+b.Name+"/system", "tcp://"+b.MigIP(), true
	var err error
	if m.DestinationXML, err = src.XML(ctx, uuid, driver.Migratable); err != nil {
		return m, err
	}
	m.PersistentXML, err = src.XML(ctx, uuid, driver.Persistent)
	return m, err
}

// sample is a job as the agent's verb tells it (agent/host/streams).
func sample(at time.Duration, j driver.Job, d driver.Domain) converge.Sample {
	x := converge.Sample{
		At: at.Truncate(time.Millisecond), Phase: "memory", Elapsed: j.Elapsed,
		MemoryTotal: j.MemoryTotal, MemoryProcessed: j.MemoryProcessed, MemoryRemaining: j.MemoryRemaining,
		DiskTotal: j.DiskTotal, DiskProcessed: j.DiskProcessed, DiskRemaining: j.DiskRemaining,
		Rate: j.MemoryRate + j.DiskRate, DirtyRate: j.DirtyRate, Iteration: j.Iteration, Throttle: j.Throttle,
		Downtime: j.Downtime, Suspended: d.State == driver.Paused,
	}
	switch {
	case d.State == driver.ShutOff || d.State == driver.Paused && d.Reason == driver.ReasonMigrating:
		x.Phase = "switchover"
	case j.DiskRemaining > 0 && j.MemoryProcessed == 0:
		x.Phase = "disk"
	case j.MemoryProcessed == 0 && j.DiskProcessed == 0:
		x.Phase = "setup"
	}
	return x
}

// write writes a series, a sample on each line.
func write(path string, samples []converge.Sample) error {
	var text bytes.Buffer
	for _, x := range samples {
		line, err := json.Marshal(x)
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%s\n", line)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text.Bytes(), 0o644)
}
