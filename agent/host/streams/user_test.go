package streams

import (
	"encoding/xml"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/driver"
)

func TestStreamUser_OnlyLibvirtsOwnCanUseTheSockets(t *testing.T) {
	qemu := driver.Node{GuestUser: &driver.User{UID: 64055, GID: 109}}
	for _, tt := range []struct {
		name, labels string
		node         driver.Node
		want         []string
	}{
		{"without labels", "", qemu, nil},
		{"of libvirt's giving", "<seclabel type='dynamic' model='dac' relabel='yes'><label>+64055:+109</label></seclabel>", qemu, nil},
		{"of another model", "<seclabel type='static' model='apparmor'><label>own</label></seclabel>", qemu, nil},
		{"libvirt's, written out", "<seclabel type='static' model='dac'><label>+64055:+109</label></seclabel>", qemu, nil},
		{"without signs", "<seclabel type='static' model='dac'><label> 64055:109 </label></seclabel>", qemu, nil},
		{"of an own user", "<seclabel type='static' model='dac'><label>+1000:+109</label></seclabel>", qemu, []string{"+1000:+109"}},
		{"of root, whose rights libvirt takes", "<seclabel type='static' model='dac'><label>+0:+0</label></seclabel>", qemu, []string{"+0:+0"}},
		{"by name", "<seclabel type='static' model='dac' relabel='no'><label>vm7:kvm</label></seclabel>", qemu, []string{"vm7:kvm"}},
		{"beside another model's", "<seclabel type='none' model='apparmor'/><seclabel type='static' model='dac'><label>+1:+1</label></seclabel>", qemu, []string{"+1:+1"}},
		{"where libvirt does not say", "<seclabel type='static' model='dac'><label>+1:+1</label></seclabel>", driver.Node{}, nil},
	} {
		var doc struct {
			SecLabels []SecLabel `xml:"seclabel"`
		}
		if err := xml.Unmarshal([]byte("<domain>"+tt.labels+"</domain>"), &doc); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range UserReasons(doc.SecLabels, tt.node, "host-b") {
			if r.Code != "guest_user_own" || r.Change == "" || r.Want != "64055" {
				t.Errorf("%s: %+v", tt.name, r)
			}
			got = append(got, r.Have)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
