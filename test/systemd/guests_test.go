package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/agent/host/disks"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/stream"
	"berth/systemd"
)

// guestDisk is a guest's, in a folder that is made with it.
const guestDisk = "/srv/guests/one/disk.qcow2"

// guestUser stands for QEMU's.
func guestUser() (uid, gid int, err error) {
	u, err := user.Lookup("nobody")
	if err != nil {
		return 0, 0, err
	}
	uid, err = strconv.Atoi(u.Uid)
	if err != nil {
		return 0, 0, err
	}
	gid, err = strconv.Atoi(u.Gid)
	return uid, gid, err
}

// probedStream is the one that the probe opens.
var probedStream = stream.ID{Migration: "22222222-2222-4333-8444-555555555555", Attempt: 1}

func streams() (*stream.Manager, *runtime.System, error) {
	rt := new(runtime.System)
	m, err := stream.NewManager(stream.PackagedDir, stream.Units{Systemd: systemd.Units{}}, rt)
	return m, rt, err
}

func openStream() error {
	m, rt, err := streams()
	if err != nil {
		return err
	}
	defer rt.Wait()
	uid, gid, err := guestUser()
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	status, err := m.Open(context.Background(), stream.Order{
		ID: probedStream, Instance: "33333333-2222-4333-8444-555555555555", Role: stream.Destination, Host: host, Peer: "there",
		Ticket: stream.NewTicket(), Lease: time.Hour, QEMU: stream.Owner{UID: uid, GID: gid},
		PKI:     pki.Paths{CA: "/etc/berth/pki/ca.crt", Cert: "/etc/berth/pki/host.crt", Key: "/etc/berth/pki/host.key"},
		Libvirt: "/run/libvirt/libvirt-sock", LibvirtURI: "qemu:///system",
		DestinationXML: probedXML, PersistentXML: probedXML,
	})
	return errors.Join(err, keep("stream", status))
}

// probedXML is the domain XML of the instance that the probed stream is for.
const probedXML = "<domain><name>probed</name><uuid>33333333-2222-4333-8444-555555555555</uuid></domain>"

func closeStream() error {
	m, rt, err := streams()
	if err != nil {
		return err
	}
	defer rt.Wait()
	status, err := m.Status(context.Background(), probedStream)
	if err != nil {
		return err
	}
	return errors.Join(keep("found", status), m.Close(context.Background(), probedStream))
}

func streamsOutlive(t *testing.T, m *machine) {
	unit := "berth-stream@" + probedStream.String() + ".service"
	m.probe("stream", "success")
	opened := kept[stream.Status](m, "stream")
	if opened.Port == 0 {
		t.Errorf("it does not listen: %+v", opened)
	}
	if state := m.property(unit, "ActiveState"); state != "active" {
		t.Errorf("the agent has ended, and its stream is %s", state)
	}
	m.probe("found", "success")
	if found := kept[stream.Status](m, "found"); found.Port != opened.Port {
		t.Errorf("opened with port %d, found with %d", opened.Port, found.Port)
	}
	m.await("end of the stream", func() error {
		if state := m.property(unit, "ActiveState"); state != "inactive" {
			return errors.New("it is " + state)
		}
		return nil
	})
}

func makeDisk() error {
	ctx := context.Background()
	f := disks.Files{Manager: systemd.Manager()}
	made, err := f.Plan("22222222-2222-4333-8444-555555555555", "0", guestDisk)
	if err == nil {
		err = f.Build(ctx, &made, "qcow2", 64<<20)
	}
	if err == nil {
		err = f.Publish(made)
	}
	if err == nil {
		err = f.Grow(ctx, guestDisk, "qcow2", 128<<20)
	}
	if err != nil {
		return err
	}
	uid, gid, err := guestUser()
	if err != nil {
		return err
	}
	if _, err := f.GiveTo(guestDisk, uid, gid); err != nil {
		return err
	}
	image, err := f.Image(ctx, guestDisk, "qcow2")
	if err != nil {
		return err
	}
	// The kernel gives a lease on another user's file to those alone that may have one.
	fd, err := unix.Open(guestDisk, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return fmt.Errorf("ask the kernel who writes: %w", err)
	}
	return keep("disk", image)
}

func lookForWriters() error {
	found, err := disks.Files{}.Writers(guestDisk)
	return errors.Join(err, keep("writers", found))
}

func disksInSandbox(t *testing.T, m *machine) {
	m.probe("disk", "success")
	if image := kept[disks.Image](m, "disk"); image.VirtualSize != 128<<20 {
		t.Errorf("made, grown and read: %+v", image)
	}
	m.probe("writers", "success")
	if found := kept[[]disks.Writer](m, "writers"); len(found) > 0 {
		t.Errorf("nobody writes, and found are %v", found)
	}
	// As QEMU does: another user opens it, through a folder that is root's.
	m.run("systemd-run", "--quiet", "--unit=guest", "--uid=nobody", "sh", "-c", "exec 3<>"+guestDisk+" && exec sleep infinity")
	m.await("a writer", func() error {
		if pid := m.property("guest.service", "MainPID"); strings.TrimSpace(m.read("/proc/"+pid+"/comm")) != "sleep" {
			return errors.New("it has not begun")
		}
		return nil
	})
	m.probe("writers", "success")
	if found := kept[[]disks.Writer](m, "writers"); len(found) != 1 || found[0].Name != "sleep" {
		t.Errorf("one writes, and found are %v", found)
	}
	if _, err := os.Stat(m.path("/srv/guests/one")); err != nil {
		t.Error(err)
	}
}

// standIn is a stream's unit.
const standIn = "berth-stream@11111111-2222-4333-8444-555555555555-1.service"

// standInsBegin starts what stands for processes of guests: a stream's unit, and a child that
// the agent's control group has.
func standInsBegin(t *testing.T, m *machine) {
	m.write("/run/systemd/system/"+standIn+".d/stand-in.conf", "[Service]\nType=exec\nExecStart=\nExecStart=/bin/sleep infinity\nReadWritePaths=\n", 0o644)
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "start", standIn)
	child := m.run("sh", "-c", "sleep infinity >/dev/null 2>&1 & echo $!; echo $! >"+group(m))
	m.write("/run/stand-ins", m.property(standIn, "MainPID")+" "+child+" "+m.property("guest.service", "MainPID"), 0o644)
}

// group is the file by which a process comes into the agent's control group.
func group(m *machine) string {
	m.t.Helper()
	for _, root := range []string{"/sys/fs/cgroup/systemd", "/sys/fs/cgroup"} {
		path := root + m.property(service, "ControlGroup") + "/cgroup.procs"
		if _, err := os.Stat(m.path(path)); err == nil {
			return path
		}
	}
	m.t.Fatal("the agent has no control group")
	return ""
}

func standInsLive(t *testing.T, m *machine) {
	for _, pid := range strings.Fields(m.read("/run/stand-ins")) {
		if comm := strings.TrimSpace(m.read("/proc/" + pid + "/comm")); comm != "sleep" {
			t.Errorf("process %s is %s", pid, comm)
		}
	}
	if state := m.property(standIn, "ActiveState"); state != "active" {
		t.Errorf("the stream is %s", state)
	}
}
