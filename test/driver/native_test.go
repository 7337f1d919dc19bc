//go:build native

package driver

import (
	"testing"
	"time"

	"berth/driver/drivertest"
	"berth/driver/libvirt"
	"berth/driver/libvirt/native"
	"berth/test/matrix"

	golibvirt "libvirt.org/go/libvirt"
)

func TestNative_ConformsOnQEMU(t *testing.T) { conformsOnQEMU(t, native.Dial, matrix.QEMUNative) }

// libvirt's test driver inside the process: no daemon, nothing installed but the
// library.
func TestNative_ConformsOnLibvirtsTestDriver(t *testing.T) {
	o := libvirt.Options{Dial: native.Dial, PingInterval: 100 * time.Millisecond}
	alone := func(h drivertest.Harness) drivertest.Harness {
		impossible(h.Cannot, "there is no daemon to restart or to hang", "Restart_", "Devices_Restart", "Hang_")
		return h
	}
	t.Run("default", func(t *testing.T) {
		o := o
		o.URI = "test:///default"
		h := alone(onTestDriver(o))
		// Connections of one process share the default machine.
		c, err := golibvirt.NewConnect(o.URI)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		pool, err := c.LookupStoragePoolByName("default-pool")
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Free()
		v, err := pool.StorageVolCreateXML("<volume><name>vol</name><capacity unit='MiB'>1</capacity></volume>", 0)
		if err != nil {
			t.Fatal(err)
		}
		defer v.Free()
		h.Change = func(t testing.TB, id string) {
			d, err := c.LookupDomainByUUIDString(id)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Free()
			if err := d.SetMetadata(golibvirt.DOMAIN_METADATA_ELEMENT, "<yes/>", "changed", "http://berth.example/changed", golibvirt.DOMAIN_AFFECT_CURRENT); err != nil {
				t.Fatal(err)
			}
		}
		domain := func(t testing.TB, id string, f func(d *golibvirt.Domain) error) {
			d, err := c.LookupDomainByUUIDString(id)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Free()
			if err := f(d); err != nil {
				t.Fatal(err)
			}
		}
		h.Save = func(t testing.TB, id string) {
			domain(t, id, func(d *golibvirt.Domain) error { return d.ManagedSave(0) })
		}
		h.Snapshot = func(t testing.TB, id, name string) {
			domain(t, id, func(d *golibvirt.Domain) error {
				s, err := d.CreateSnapshotXML("<domainsnapshot><name>"+name+"</name></domainsnapshot>", 0)
				if err == nil {
					_ = s.Free()
				}
				return err
			})
		}
		h.Checkpoint = func(t testing.TB, id, name string) {
			domain(t, id, func(d *golibvirt.Domain) error {
				s, err := d.CreateCheckpointXML("<domaincheckpoint><name>"+name+"</name></domaincheckpoint>", 0)
				if err == nil {
					_ = s.Free()
				}
				return err
			})
		}
		h.Unsnapshot = func(t testing.TB, id, name string) {
			domain(t, id, func(d *golibvirt.Domain) error {
				if s, err := d.SnapshotLookupByName(name, 0); err == nil {
					defer s.Free()
					return s.Delete(0) // this driver deletes no metadata alone
				}
				s, err := d.CheckpointLookupByName(name, 0)
				if err != nil {
					return err
				}
				defer s.Free()
				return s.Delete(golibvirt.DOMAIN_CHECKPOINT_DELETE_METADATA_ONLY)
			})
		}
		h.Plug = func(t testing.TB) (string, func()) {
			d, err := c.DeviceCreateXML(plugged, 0)
			if err != nil {
				t.Fatal(err)
			}
			name, err := d.GetName()
			if err != nil {
				t.Fatal(err)
			}
			return name, func() {
				defer d.Free()
				if err := d.Destroy(); err != nil {
					t.Error(err)
				}
			}
		}
		record(t, matrix.TestNative, h, o.URI+" in the process", drivertest.Run(t, h))
	})
	t.Run("node file", func(t *testing.T) {
		o := o
		o.URI = writeNodeFile(t)
		h := alone(onNodeFile(o))
		wantNodeFilesDevices(t, h)
		record(t, matrix.TestNative, h, "test:// node file in the process", drivertest.Run(t, h))
	})
}
