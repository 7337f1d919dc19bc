package host_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"berth/agent/host"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// crossing are devices by which a peer's instance would reach what others have on this host, and
// the code of the refusal.
var crossing = []struct{ name, code, element string }{
	{"the folder of all images", "path_not_allowed", `<filesystem type='mount'><driver type='virtiofs'/><source dir='/var/lib/libvirt/images'/><target dir='all'/></filesystem>`},
	{"the folder of Nova's", "path_not_allowed", `<filesystem type='mount'><source dir='/var/lib/nova/instances'/><target dir='all'/></filesystem>`},
	{"a folder as a disk", "path_not_allowed", `<disk type='dir' device='disk'><driver type='fat'/><source dir='/var/lib/libvirt/images/x'/><target dev='vdy' bus='virtio'/></disk>`},
	{"the folder of images as a file", "folder_not_allowed", `<disk type='file' device='disk'><driver type='raw'/><source file='/var/lib/libvirt/images'/><target dev='vdy' bus='virtio'/></disk>`},
	{"another's monitor", "path_not_allowed", `<serial type='unix'><source mode='connect' path='/var/lib/libvirt/qemu/domain-3-other/monitor.sock'/></serial>`},
	{"another's monitor, taken over", "path_not_allowed", `<serial type='unix'><source mode='bind' path='/var/lib/libvirt/qemu/domain-3-other/monitor.sock'/></serial>`},
	{"another's secrets as a disk", "path_not_allowed", `<disk type='file' device='disk'><driver type='raw'/><source file='/var/lib/libvirt/qemu/domain-3-other/master-key.aes'/><target dev='vdy' bus='virtio'/></disk>`},
	{"another's graphics", "path_not_allowed", `<graphics type='vnc'><listen type='socket' socket='/var/lib/libvirt/qemu/domain-3-other/vnc.sock'/></graphics>`},
	{"another's agent", "path_not_allowed", `<channel type='unix'><source mode='bind' path='/var/lib/libvirt/qemu/channel/target/domain-3-other/org.qemu.guest_agent.0'/><target type='virtio' name='org.qemu.guest_agent.0'/></channel>`},
	{"a disk that others have", "path_not_allowed", `<disk type='file' device='disk'><driver type='raw'/><source file='/etc/shadow'/><target dev='vdy' bus='virtio'/></disk>`},
}

func withElement(element string) func(string) string {
	return func(text string) string { return strings.Replace(text, "</devices>", element+"</devices>", 1) }
}

// Whichever way an instance comes, and whatever its source left out before, it gets no folder of
// this host and nothing of another instance's.
func TestArrival_FoldersAndOthersSocketsAreRefused(t *testing.T) {
	l := newForeignLab(t)
	v := l.guest("a", "vm1")
	b := l.hosts["b"]
	for _, tt := range crossing {
		change := withElement(tt.element)
		for _, kind := range []string{migration.TypeLiveMigration, migration.TypeMigration} {
			for _, checked := range []bool{true, false} {
				t.Run(tt.name+", "+kind, func(t *testing.T) {
					c := newCold(t, l.lab, v.UUID, nil)
					c.guest.XML, c.guest.Definition = change(c.guest.XML), change(c.guest.Definition)
					ref := c.ref
					ref.Migration = uuid.NewString()
					if checked {
						source, err := c.a.Describe(t.Context())
						l.must("describe", err)
						r := migration.CheckRequest{Guest: c.guest, Source: source, Kind: kind}
						if kind == migration.TypeMigration {
							r.Wanted = &c.wanted
						}
						_, err = operation.CheckDestination.Ask(t.Context(), b, ref, r)
						refusedFor(t, err, tt.code)
						return
					}
					_, err := operation.Claim.Ask(t.Context(), b, ref, migration.ClaimRequest{Guest: c.guest, Context: c.context(), Kind: kind})
					l.must("claim", err)
					undo := operation.RollbackPreLiveMigration
					if kind == migration.TypeMigration {
						undo = operation.RollbackPrepResize
						_, err = operation.PrepResize.Ask(t.Context(), b, ref, migration.PrepRequest{Kind: kind, Guest: c.guest, Wanted: c.wanted, Source: "a"})
					} else {
						_, err = operation.PreLiveMigration.Ask(t.Context(), b, ref, migration.PreLiveRequest{Guest: c.guest, Source: "a"})
					}
					refusedFor(t, err, tt.code)
					l.must("roll back", undo.Ask(t.Context(), b, ref))
					l.must("abort the claim", operation.AbortClaim.Ask(t.Context(), b, ref))
				})
			}
		}
		t.Run(tt.name+", virsh", func(t *testing.T) {
			_, err := b.External().ClaimArrival(t.Context(), change(l.document("a", v.UUID)))
			refusedFor(t, err, tt.code)
		})
	}
	l.state("a", v.UUID, driver.Running)
}

// A dead host's last record is that host's word alone.
func TestPrepEvacuation_FoldersAndOthersSocketsAreRefused(t *testing.T) {
	e := newEvacuation(t, driver.Running)
	good := e.request.Guest
	for _, tt := range crossing {
		e.request.Guest.XML, e.request.Guest.Definition = withElement(tt.element)(good.XML), withElement(tt.element)(good.Definition)
		e.ref.Migration = uuid.NewString()
		e.must("claim", e.claim())
		_, err := operation.PrepEvacuation.Ask(t.Context(), e.b, e.ref, e.request)
		if !slices.ContainsFunc(fault.ReasonsOf(err), func(r fault.Reason) bool { return r.Code == tt.code }) {
			t.Errorf("%s: %v, reasons %+v; want %s", tt.name, err, fault.ReasonsOf(err), tt.code)
		}
		e.must("roll back", operation.RollbackPrepEvacuation.Ask(t.Context(), e.b, e.ref))
		e.must("abort the claim", operation.AbortClaim.Ask(t.Context(), e.b, e.ref))
	}
}

// What an instance brings along when it comes back is its destination's word alone, the identities
// of its files too.
func TestCarry_DisksOfAPeerAreHeldAgainstPolicy(t *testing.T) {
	x := newVisit(t, sharedDisk)
	x.run(x.returning(), "power off there")
	good, err := operation.ReadVolumes.Ask(t.Context(), x.b, x.back)
	x.must("read volumes", err)
	x.world.Host("a").Put("/srv/secret", "raw", 1<<20, "of a")
	x.world.Host("a").Put("/shared/other", "raw", 1<<20, "of another instance")
	_, err = x.a.Create(t.Context(), host.CreateRequest{
		Name: "other", Flavor: small, ProjectID: "project", UserID: "user", Disks: []host.CreateDisk{{Path: "/shared/other", Format: "raw"}},
	})
	x.must("create another instance", err)
	x.a.fake.SetPool(driver.Pool{Name: "default", Type: "netfs", Active: true, Path: "/shared"}, driver.Volume{Name: "other.img", Path: "/shared/other"})
	x.must("open the pool", x.a.fake.OpenPool(t.Context(), "default"))
	for _, tt := range []struct{ name, code, attributes, source string }{
		{"a file of the host", "path_not_allowed", "type='file'", "file='/srv/secret'"},
		{"another's disk as a volume", "used_by_other", "type='volume'", "pool='default' volume='other.img'"},
		{"another's socket", "path_not_allowed", "type='network'", "protocol='nbd' name='x'><host transport='unix' socket='/run/other.sock'/></source><source"},
		{"a label", "label_not_allowed", "type='file'", "file='/shared/volume'><seclabel model='dac'><label>+0:+0</label></seclabel></source><source"},
	} {
		v := good
		v.Attached = []string{"<disk " + tt.attributes + " device='disk'><driver name='qemu' type='raw'/><source " + tt.source + "/><target dev='vdx' bus='virtio'/></disk>"}
		v.Attached[0] = strings.Replace(v.Attached[0], "<source/>", "", 1)
		for _, path := range []string{"/srv/secret", "/shared/volume"} {
			id, err := x.world.Host("a").Identity(path)
			x.must("identity", err)
			v.Files = append(v.Files, migration.VolumeFile{Target: "vdx", Path: path, Filesystem: id})
		}
		refusedFor(t, operation.CarryVolumes.Ask(t.Context(), x.a, x.back, v), tt.code)
	}
	x.must("carry what is its own", operation.CarryVolumes.Ask(t.Context(), x.a, x.back, good))
}
