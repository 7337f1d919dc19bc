package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"berth/agent/api"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/pki"
)

// soonEnds is how long before its end a certificate is told of. Arbitrary: a month is above
// what renewing them on all hosts takes.
const soonEnds = 30 * 24 * time.Hour

// renewal is what helps where the certificate of a host ends. What the new one is not told to
// have it has not, though the old one had it; and its ca.crt stays behind, as the host's own may
// have two authorities.
func renewal(host, where string) string {
	return "berth pki host " + host + ", with the names and rights of the one before (berth pki show says them: --san, --right); copy host.crt and host.key " + where +
		" and restart the agent (guests go on)"
}

// newAuthority is what helps where an authority ends: what it signs anew ends with it.
const newAuthority = "make a new authority (berth pki init DIR --name NAME, both its own), have both, the old and the new, in ca.crt of every host and restart the agents; " +
	"only then renew each host's certificate by the new one, with the names and rights of the one before (docs/how-to/certificates.md)"

// Ending is what of a host's certificate and the authorities that it is good by has ended or soon
// does, and what helps; nil where nothing does.
func Ending(id *pki.Identity, host string, now time.Time) *fault.Reason {
	words := func(end time.Time) string {
		if end.Before(now) {
			return "ended on " + end.Format(time.DateOnly)
		}
		return "ends on " + end.Format(time.DateOnly)
	}
	for _, c := range id.Authorities {
		if c.NotAfter.Sub(now) < soonEnds {
			return &fault.Reason{
				Code: "authority_ends", Message: fmt.Sprintf("the authority %q of this host's certificate %s", c.Subject.CommonName, words(c.NotAfter)), Change: newAuthority,
			}
		}
	}
	if end := id.Leaf.NotAfter; end.Sub(now) < soonEnds {
		return &fault.Reason{Code: "certificate_ends", Message: "this host's certificate " + words(end), Change: renewal(host, "here")}
	}
	return nil
}

// identityOnDisk is what the agent would have if it began now; of one that has ended, or whose
// authority has, what it was when it was made.
func identityOnDisk(files config.PKI, now time.Time) (*pki.Identity, error) {
	paths := pki.Paths{CA: files.CA, Cert: files.Cert, Key: files.Key}
	id, err := pki.Load(paths, now)
	if err == nil {
		return id, nil
	}
	if leaf, unread := pki.ReadCert(files.Cert); unread == nil && leaf.NotBefore.Before(now) {
		if was, none := pki.Load(paths, leaf.NotBefore); none == nil {
			return was, nil
		}
	}
	return nil, err
}

// certificate is whether others can tell that this host is who it says: now, and when the agent
// begins anew.
func (d *Doctor) certificate() api.Check {
	const name = "certificate"
	o, files, now := d.o, d.o.Config().PKI, d.o.Runtime.Now()
	const alone, restart = ": at its next start the agent serves its own machine alone", "restart the agent (systemctl restart berth; guests go on)"
	id, err := identityOnDisk(files, now)
	if o.Identity == nil {
		if o.Observing && o.NoFiles {
			return unset(name, "none yet; needed in mode manage, where there is more than one host", "berth pki --help")
		}
		do := "make it: berth pki host " + o.Host + ", copy the files here and restart the agent (guests go on)"
		if err == nil && pki.Covers(id.Leaf, o.Host) {
			do = restart
			if r := Ending(id, o.Host, now); r != nil {
				do = r.Change
			}
		}
		return wrong(name, o.NoIdentity.Error(), do)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return wrong(name, err.Error(), "put it back"+alone)
	case err != nil:
		return wrong(name, err.Error(), "put files there that belong together"+alone)
	case !pki.Covers(id.Leaf, o.Host):
		return wrong(name, files.Cert+" is a "+pki.Describe(id.Leaf)+", and this host is "+o.Host, "put the files of this host there"+alone)
	}
	var found, do []string
	if r := Ending(id, o.Host, now); r != nil {
		found, do = append(found, r.Message), append(do, r.Change)
	}
	switch {
	case !id.Leaf.Equal(o.Identity.Leaf):
		found, do = append(found, files.Cert+" was renewed, and the agent still shows the one before"), append(do, restart)
	case !id.Roots.Equal(o.Identity.Roots):
		found, do = append(found, files.CA+" was changed, and the agent still goes by what it was"), append(do, restart)
	}
	if info, err := os.Stat(files.Key); err == nil && info.Mode().Perm()&0o007 != 0 {
		found = append(found, fmt.Sprintf("the key %s can be read or written by everybody (%s)", files.Key, info.Mode().Perm()))
		do = append(do, "chmod 600 "+files.Key+", and make another if somebody may have read it")
	}
	if len(found) > 0 {
		return wrong(name, strings.Join(found, "; "), strings.Join(do, "; "))
	}
	return right(name, fmt.Sprintf("%s, good for %d days", pki.Describe(id.Leaf), int(id.Leaf.NotAfter.Sub(now).Hours()/24)))
}
