package streams

import (
	"fmt"
	"strconv"
	"strings"

	"berth/driver"
	"berth/internal/fault"
)

// SecLabel is one <seclabel> of a domain's document.
type SecLabel struct {
	Type  string `xml:"type,attr"`  // static, dynamic, none
	Model string `xml:"model,attr"` // dac, apparmor, selinux
	Label string `xml:"label"`
}

// UserReasons refuse a guest whose document has QEMU run as another user than
// libvirt's on this host: it could neither make a stream's sockets nor connect to
// them, and libvirt would say only that permission was denied. Labels that libvirt
// gives by itself (dynamic) are that user's. Where libvirt does not tell the user all
// is believed; a stream is refused then.
func UserReasons(labels []SecLabel, node driver.Node, host string) []fault.Reason {
	if node.GuestUser == nil {
		return nil
	}
	var out []fault.Reason
	for _, l := range labels {
		if l.Model != "dac" || l.Type != "static" || labelUser(l.Label) == strconv.Itoa(node.GuestUser.UID) {
			continue
		}
		out = append(out, fault.Reason{
			Code:    "guest_user_own",
			Message: fmt.Sprintf("the guest's QEMU runs as %s by its own <seclabel>, and the sockets of a stream on %s are user %d's", l.Label, host, node.GuestUser.UID),
			Want:    strconv.Itoa(node.GuestUser.UID), Have: l.Label,
			Change: `write that user as "+UID:+GID", or take the <seclabel> of model dac out while the guest is shut off, or set [migration] transport = "libvirt-tls" on the destination`,
		})
	}
	return out
}

// labelUser is the user of a DAC label: "+64055:+109" is numbers for certain,
// "64055:109" numbers unless somebody is called that (libvirt's format domain,
// security label). A name is left as it stands: what it is on another host nobody
// here knows.
func labelUser(label string) string {
	user, _, _ := strings.Cut(strings.TrimSpace(label), ":")
	return strings.TrimPrefix(user, "+")
}
