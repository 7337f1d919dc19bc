package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/agent/api"
	"berth/claims/pci"
	"berth/driver"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/topology"
)

// healthy is a machine of which nothing is wrong, and nothing is left unused.
func healthy(t *testing.T) patient {
	t.Helper()
	root := t.TempDir()
	c := config.Default()
	c.Agent.StateDir, c.Agent.RuntimeDir, c.Host.DiskPath = root, root, root
	c.Guard.Hook = filepath.Join(root, "hook")
	c.PCI.DeviceSpec = []pci.Spec{{VendorID: "8086"}}
	group := 7
	card := topology.PCIAddress{Bus: 0x3b}
	p := patient{
		conf: c, root: root,
		host: &topology.Host{BasePageSize: topology.PageSize4K, PCI: []topology.PCIDevice{{Address: card, IOMMUGroup: &group, Class: "0x020000"}}},
		cells: []api.HostCell{{
			Pages:   []api.HostPages{{Size: topology.PageSize4K, Total: 1000}, {Size: topology.PageSize2M, Total: 64, Reserved: 4, Used: 20}},
			Devices: []api.HostDevice{{Address: card}},
		}},
		node:   driver.Node{Hypervisor: "QEMU", LibraryVersion: 9_000_000, HypervisorVersion: 7_002_000, Capabilities: &topology.Capabilities{VirtType: "kvm", VFIO: true}},
		guard:  func() guardState { return guardState{state: "active, last called 3s ago"} },
		synced: func() (bool, error) { return true, nil }, manager: func() error { return nil }, needsBus: true,
		space: func(string) (room, error) {
			return room{total: 100 << 30, free: 50 << 30, files: 1 << 20, counted: true}, nil
		},
		now: time.Now(),
	}
	p.put(t, "hook", "#!/bin/sh\n")
	p.put(t, "dev/kvm", "")
	p.put(t, "proc/sys/kernel/osrelease", "6.1.0-18-amd64\n")
	p.put(t, "proc/sys/vm/unprivileged_userfaultfd", "1\n")
	p.put(t, "proc/mounts", "hugetlbfs /dev/hugepages hugetlbfs rw 0 0\n")
	p.put(t, "sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "44\n")
	return p
}

func (p patient) put(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(p.path(name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.path(name), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (p patient) remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(p.path(name)); err != nil {
		t.Fatal(err)
	}
}

// direct makes a check where it is asked for.
func direct(_, _ string, check func() api.Check) api.Check { return check() }

// TestPatient_SaysOfEachIllWhatToDo makes one thing ill at a time: that check alone changes,
// says what it found, and has a remedy.
func TestPatient_SaysOfEachIllWhatToDo(t *testing.T) {
	t.Parallel()
	const spoilt = "spoilt"
	for _, tt := range []struct {
		name, check string
		outcome     api.CheckOutcome
		ill         func(t *testing.T, p *patient)
		found       string // in the detail
		remedy      string
	}{
		{"no KVM", "kernel", api.CheckUnset, func(t *testing.T, p *patient) { p.remove(t, "dev/kvm") }, "emulated", "kvm_intel"},
		{"KVM is not used", "kernel", api.CheckWrong, func(t *testing.T, p *patient) { p.node.Emulated, p.node.HypervisorVersion = true, 10_000_000 }, "all the same", "group kvm"},
		{"libvirt is silent", "libvirt", api.CheckWrong, func(t *testing.T, p *patient) { p.libvirt = errors.New(spoilt) }, spoilt, "systemctl start libvirtd"},
		{"libvirt is old", "libvirt", api.CheckWrong, func(t *testing.T, p *patient) { p.node.LibraryVersion = 7_006_000 }, "libvirt 7.6.0", "8.0.0"},
		{"QEMU is old", "libvirt", api.CheckWrong, func(t *testing.T, p *patient) { p.node.HypervisorVersion = 6_001_000 }, "QEMU 6.1.0", "6.2.0"},
		{"no capabilities", "libvirt", api.CheckWrong, func(t *testing.T, p *patient) { p.node.CapabilitiesError = spoilt }, spoilt, "domcapabilities"},
		{"no hook", "guard hook", api.CheckUnset, func(t *testing.T, p *patient) { p.remove(t, "hook") }, "not installed", "restart libvirtd"},
		{"hook cannot run", "guard hook", api.CheckWrong, func(t *testing.T, p *patient) {
			p.guard = func() guardState { return guardState{"not executable", "chmod 755 it"} }
			if err := os.Chmod(p.path("hook"), 0o644); err != nil {
				t.Fatal(err)
			}
		}, "not executable", "chmod"},
		{"libvirt never called it", "guard hook", api.CheckUnset, func(t *testing.T, p *patient) {
			p.guard = func() guardState { return guardState{"not called", "restart libvirtd"} }
		}, "not called", "restart"},
		{"only observing", "guard hook", api.CheckUnset, func(t *testing.T, p *patient) { p.observing = true }, "observe", "manage"},
		{"AppArmor forbids", "confinement", api.CheckWrong, func(t *testing.T, p *patient) {
			p.put(t, "sys/module/apparmor/parameters/enabled", "Y\n")
			p.put(t, "etc/apparmor.d/abstractions/libvirt-qemu", "")
		}, "AppArmor", "include <abstractions/berth-stream>"},
		{"SELinux confines", "confinement", api.CheckUnset, func(t *testing.T, p *patient) { p.put(t, "sys/fs/selinux/enforce", "1") }, "SELinux", "ausearch"},
		{"no huge pages", "huge pages", api.CheckUnset, func(t *testing.T, p *patient) { p.cells[0].Pages = p.cells[0].Pages[:1] }, "none", "hugepagesz"},
		{"no hugetlbfs", "huge pages", api.CheckWrong, func(t *testing.T, p *patient) { p.put(t, "proc/mounts", "") }, "64 of 2MiB in cell 0", "mount -t hugetlbfs"},
		{"pages are taken", "huge pages", api.CheckWrong, func(t *testing.T, p *patient) {
			p.put(t, "sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "30")
		}, "10 pages of 2MiB in cell 0", "reserved_hugepages"},
		{"no IOMMU", "IOMMU", api.CheckWrong, func(t *testing.T, p *patient) { p.host.PCI[0].IOMMUGroup = nil }, "1 devices are for guests", "intel_iommu=on"},
		{"no device for guests", "IOMMU", api.CheckUnset, func(t *testing.T, p *patient) { p.conf.PCI.DeviceSpec = nil }, "1 groups", "device_spec"},
		{"a device_spec of nothing", "IOMMU", api.CheckWrong, func(t *testing.T, p *patient) { p.cells[0].Devices = nil }, "matches no device", "berth host show"},
		{"a shared group", "IOMMU", api.CheckWrong, func(t *testing.T, p *patient) {
			p.host.PCI = append(p.host.PCI,
				topology.PCIDevice{Address: topology.PCIAddress{Bus: 0x3c}, IOMMUGroup: p.host.PCI[0].IOMMUGroup, Class: "0x010802", Driver: "nvme"},
				topology.PCIDevice{Address: topology.PCIAddress{Bus: 0x3d}, IOMMUGroup: p.host.PCI[0].IOMMUGroup, Class: "0x060400", Driver: "pcieport"})
		}, "0000:3b:00.0 is with 0000:3c:00.0 (driver nvme) in group 7", "another slot"},
		{"no VFIO", "IOMMU", api.CheckWrong, func(t *testing.T, p *patient) { p.node.Capabilities.VFIO = false }, "VFIO", "modprobe vfio-pci"},
		{"no userfaultfd", "userfaultfd", api.CheckUnset, func(t *testing.T, p *patient) { p.put(t, "proc/sys/vm/unprivileged_userfaultfd", "0") }, "post-copy", "sysctl -w"},
		{"no userfaultfd, and it is wanted", "userfaultfd", api.CheckWrong, func(t *testing.T, p *patient) {
			p.put(t, "proc/sys/vm/unprivileged_userfaultfd", "0")
			p.conf.Migration.PostCopy = true
		}, "[migration] post_copy", "sysctl -w"},
		{"no userfaultfd, and a device that QEMU of that age does not know", "userfaultfd", api.CheckUnset, func(t *testing.T, p *patient) {
			p.put(t, "proc/sys/vm/unprivileged_userfaultfd", "0")
			p.device(t, 0o666)
			p.node.LibraryVersion = 10_001_000
		}, "QEMU cannot open /dev/userfaultfd", "QEMU 8.1.0 and libvirt 10.1.0"},
		{"no userfaultfd, and a device that is root's", "userfaultfd", api.CheckUnset, func(t *testing.T, p *patient) {
			p.put(t, "proc/sys/vm/unprivileged_userfaultfd", "0")
			p.device(t, 0o600)
			p.put(t, "etc/libvirt/qemu.conf", aclWithDevice)
			p.node.HypervisorVersion = 8_001_000
		}, "QEMU cannot open /dev/userfaultfd", "sysctl -w"},
		{"no userfaultfd, and a device that guests do not see", "userfaultfd", api.CheckUnset, func(t *testing.T, p *patient) {
			p.put(t, "proc/sys/vm/unprivileged_userfaultfd", "0")
			p.device(t, 0o666)
			p.put(t, "etc/libvirt/qemu.conf", "# "+strings.ReplaceAll(aclWithDevice, "\n", "\n# "))
			p.node.HypervisorVersion = 8_001_000
		}, "QEMU cannot open /dev/userfaultfd", "sysctl -w"},
		{"a kernel without it", "userfaultfd", api.CheckUnset, func(t *testing.T, p *patient) { p.remove(t, "proc/sys/vm/unprivileged_userfaultfd") }, "says nothing", "CONFIG_USERFAULTFD"},
		{"nobody keeps the clock", "clock", api.CheckWrong, func(t *testing.T, p *patient) { p.synced = func() (bool, error) { return false, nil } }, "unsynchronised", "timesyncd"},
		{"the clock is not known", "clock", api.CheckWrong, func(t *testing.T, p *patient) { p.synced = func() (bool, error) { return false, errors.New(spoilt) } }, spoilt, "timedatectl"},
		{"a full disk", "disk space", api.CheckWrong, func(t *testing.T, p *patient) {
			p.space = func(string) (room, error) { return room{total: 100 << 30, free: 100 << 20}, nil }
		}, "100 MiB of 100.0 GiB free", "no claim is given"},
		{"no inodes", "disk space", api.CheckWrong, func(t *testing.T, p *patient) {
			p.space = func(string) (room, error) {
				return room{total: 100 << 30, free: 50 << 30, files: 3, counted: true}, nil
			}
		}, "only 3 files", "remove files"},
		{"no bus", "system bus", api.CheckWrong, func(t *testing.T, p *patient) { p.manager = func() error { return errors.New(spoilt) } }, spoilt, "dbus.socket"},
		{"no bus, and nobody asks it", "system bus", api.CheckUnset, func(t *testing.T, p *patient) {
			p.manager, p.needsBus = func() error { return errors.New(spoilt) }, false
		}, spoilt, "dbus.socket"},
		{"a silent disk", "disk space", api.CheckWrong, func(t *testing.T, p *patient) {
			p.space = func(string) (room, error) { return room{}, fmt.Errorf("%w within 5s", errNoAnswer) }
		}, "does not answer within 5s", "/proc/mounts"},
		{"no folder", "disk space", api.CheckWrong, func(t *testing.T, p *patient) {
			p.space = func(string) (room, error) { return room{}, errors.New(spoilt) }
		}, spoilt, "make "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := healthy(t)
			for _, c := range p.machineChecks(direct) {
				if c.Outcome != api.CheckOK || c.Detail == "" || c.Remedy != "" {
					t.Fatalf("before: %+v", c)
				}
			}
			tt.ill(t, &p)
			found := false
			for _, c := range p.machineChecks(direct) {
				if c.Name != tt.check {
					if c.Outcome != api.CheckOK {
						t.Errorf("changed too: %+v", c)
					}
					continue
				}
				found = true
				if c.Outcome != tt.outcome || !strings.Contains(c.Detail, tt.found) || !strings.Contains(c.Remedy, tt.remedy) {
					t.Errorf("%+v, want %q with %q, and %q to do", c, tt.outcome, tt.found, tt.remedy)
				}
			}
			if !found {
				t.Errorf("no check %q", tt.check)
			}
		})
	}
}

// aclWithDevice is what libvirt's settings have where somebody opened the device to guests.
const aclWithDevice = "cgroup_device_acl = [\n    \"/dev/null\",\n    \"/dev/userfaultfd\"\n]\n"

// device makes /dev/userfaultfd of that mode, and has guests run as somebody who does not own it.
func (p *patient) device(t *testing.T, mode os.FileMode) {
	t.Helper()
	p.put(t, "dev/userfaultfd", "")
	if err := os.Chmod(p.path("dev/userfaultfd"), mode); err != nil {
		t.Fatal(err)
	}
	p.node.GuestUser = &driver.User{UID: 64055, GID: 64054}
}

// TestPatient_GuestsArriveByPostCopyByTheDevice where the system call is for root alone.
func TestPatient_GuestsArriveByPostCopyByTheDevice(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, found string
		how         func(t *testing.T, p *patient)
	}{
		{"libvirt opens it", "libvirt lets guests open", func(t *testing.T, p *patient) {
			p.device(t, 0o600)
			p.node.LibraryVersion = 10_001_000
		}},
		{"it is open to everybody", "QEMU may open", func(t *testing.T, p *patient) { p.device(t, 0o666) }},
		{"it is of guests' group", "QEMU may open", func(t *testing.T, p *patient) {
			p.device(t, 0o660)
			p.node.GuestUser.GID = groupOf(t, p.path("dev/userfaultfd"))
		}},
		{"it is of a group that guests' user is in", "QEMU may open", func(t *testing.T, p *patient) {
			p.device(t, 0o660)
			p.put(t, "etc/passwd", "root:x:0:0::/root:/bin/bash\nlibvirt-qemu:x:64055:64054::/var/lib/libvirt:/usr/sbin/nologin\n")
			p.put(t, "etc/group", fmt.Sprintf("other:x:7:nobody\nkvm:x:%d:anna,libvirt-qemu\n", groupOf(t, p.path("dev/userfaultfd"))))
		}},
		{"it is guests' own", "QEMU may open", func(t *testing.T, p *patient) {
			p.device(t, 0o600)
			p.node.GuestUser.UID = os.Getuid()
			if os.Getuid() == 0 { // root needs no device: it is given to another
				p.node.GuestUser.UID = 64055
				if err := os.Chown(p.path("dev/userfaultfd"), 64055, -1); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"everybody may make the call", "QEMU may use it", func(t *testing.T, p *patient) { p.put(t, "proc/sys/vm/unprivileged_userfaultfd", "1") }},
		{"guests are root's", "runs as root", func(t *testing.T, p *patient) { p.node.GuestUser = &driver.User{} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := healthy(t)
			p.conf.Migration.PostCopy = true
			p.put(t, "proc/sys/vm/unprivileged_userfaultfd", "0")
			p.put(t, "etc/libvirt/qemu.conf", aclWithDevice)
			p.node.HypervisorVersion = 8_001_000
			if c := p.userfaultfd(); c.Outcome != api.CheckWrong {
				t.Fatalf("before: %+v", c)
			}
			tt.how(t, &p)
			if c := p.userfaultfd(); c.Outcome != api.CheckOK || !strings.Contains(c.Detail, tt.found) {
				t.Errorf("%+v, want %q", c, tt.found)
			}
		})
	}
}

// groupOf is the number of a file's group.
func groupOf(t *testing.T, path string) int {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return int(st.Gid)
}

func TestPatient_WithoutHardwareSaysSo(t *testing.T) {
	t.Parallel()
	p := healthy(t)
	p.host = nil
	for _, c := range p.machineChecks(direct) {
		if unknown := c.Name == "huge pages" || c.Name == "IOMMU"; unknown != (c.Outcome == api.CheckWrong) {
			t.Errorf("%+v", c)
		}
	}
}

// TestPeerChecks_NameEachHostThatIsNotWell holds what was found of other hosts against what is
// told of them.
func TestPeerChecks_NameEachHostThatIsNotWell(t *testing.T) {
	t.Parallel()
	now := time.Now()
	good := api.Meeting{Ends: now.Add(400 * 24 * time.Hour)}
	with := func(change func(*api.Meeting)) api.Meeting {
		m := good
		change(&m)
		return m
	}
	refused := fault.Refuse(fault.Forbidden, "check that it is host-d", fault.Reason{Code: "certificate", Message: "it is signed by another CA", Change: "give it a certificate of this CA"})
	silent := fault.Refuse(fault.Unavailable, "ask", fault.Reason{Code: "unreachable", Message: "no route to it", Change: "check the host"})
	checks := peerChecks([]met{
		{name: "host-b", Meeting: good},
		{name: "host-c", Meeting: with(func(m *api.Meeting) { m.Ahead = -90 * time.Second })},
		{name: "host-d", err: refused},
		{name: "host-e", err: silent, configured: true},
		{name: "host-f", err: silent},
		{name: "host-g", Meeting: with(func(m *api.Meeting) { m.Ends = now.Add(time.Hour) })},
	}, nil, now)
	want := []struct {
		name    string
		outcome api.CheckOutcome
		says    string
	}{
		{"peers", api.CheckOK, "1 of 6"},
		{"peer host-c", api.CheckWrong, "1m30s or more behind"},
		{"peer host-d", api.CheckWrong, "another CA"},
		{"peer host-e", api.CheckWrong, "no route"},
		{"peer host-f", api.CheckUnset, "Placement knows it"},
		{"peer host-g", api.CheckWrong, "certificate ends"},
	}
	if len(checks) != len(want) {
		t.Fatalf("%d checks: %+v", len(checks), checks)
	}
	for i, w := range want {
		c := checks[i]
		if c.Name != w.name || c.Outcome != w.outcome || !strings.Contains(c.Detail, w.says) || (c.Outcome != api.CheckOK) != (c.Remedy != "") {
			t.Errorf("%+v, want %+v", c, w)
		}
	}
	if do := checks[len(checks)-1].Remedy; !strings.Contains(do, "berth pki host host-g, with the names and rights of the one before") {
		t.Errorf("to renew host-g's certificate: %q", do)
	}
	if c := peerChecks(nil, errors.New("placement is down"), now); len(c) != 1 || c[0].Outcome != api.CheckUnset {
		t.Errorf("without Placement: %+v", c)
	}
}
