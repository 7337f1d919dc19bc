package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/pki"
	"berth/internal/screen"
)

const defaultPKI = "/etc/berth/pki"

// certificate is what is printed of one.
type certificate struct {
	Role  pki.Role `json:"role"`
	Name  string   `json:"name"`
	Names []string `json:"names,omitempty"` // a host's DNS names and addresses
	// Rights are those that it gives, and Void what it claims and has nothing of: they are
	// of the other role, or there are none of that name.
	Rights    []pki.Right `json:"rights,omitempty"`
	Void      []pki.Right `json:"void_rights,omitempty"`
	Issuer    string      `json:"issuer"`
	NotBefore time.Time   `json:"not_before"`
	NotAfter  time.Time   `json:"not_after"`
	Serial    string      `json:"serial"`
	File      string      `json:"file"`
}

func describe(c *x509.Certificate, file string) certificate {
	role, name := pki.RoleOf(c)
	out := certificate{
		Role: role, Name: name, Names: pki.Names(c), Issuer: c.Issuer.CommonName,
		NotBefore: c.NotBefore.UTC(), NotAfter: c.NotAfter.UTC(), Serial: c.SerialNumber.Text(16), File: file,
	}
	for _, r := range pki.RightsOf(c) {
		if pki.Gives(c, r) {
			out.Rights = append(out.Rights, r)
		} else {
			out.Void = append(out.Void, r)
		}
	}
	return out
}

// rightWords are the rights of a certificate, for people.
func (c certificate) rightWords() string {
	var out []string
	for _, r := range c.Rights {
		out = append(out, string(r))
	}
	for _, r := range c.Void {
		out = append(out, string(r)+" (counts for nothing)")
	}
	return strings.Join(out, ", ")
}

func (a *app) printCertificates(list []certificate) error {
	return a.print(map[string]any{"certificates": list}, func(w io.Writer) {
		screen.Row(w, "ROLE", "NAME", "GOOD FOR", "RIGHTS", "SIGNED BY", "VALID UNTIL", "FILE")
		for _, c := range list {
			screen.Row(w, c.Role, c.Name, strings.Join(c.Names, ","), c.rightWords(), c.Issuer, c.NotAfter.Format("2006-01-02"), c.File)
		}
	})
}

func (a *app) pkiCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "pki",
		Short: "Make and show certificates for hosts and operators",
		Long: `Hosts know each other by certificates: each host's carries its provider's name,
and all are signed by one CA. Use your own CA, or make one here.

  1. On a machine that you trust:   berth pki init /root/berth-ca
  2. There, for each host:          berth pki host host-a --dir /root/berth-ca
  3. Copy the three files of /root/berth-ca/host-a/ to host-a:/etc/berth/pki/
  4. For yourself:                  berth pki operator alice --dir /root/berth-ca

What not everybody may do is a right, in a certificate (--right) or in [rights] of a
host's configuration: see berth pki host --help and berth pki operator --help.

The same files serve libvirt and QEMU for migrations over TLS:

  ca.crt    /etc/pki/CA/cacert.pem                 /etc/pki/qemu/ca-cert.pem
  host.crt  /etc/pki/libvirt/servercert.pem        /etc/pki/qemu/server-cert.pem
            /etc/pki/libvirt/clientcert.pem        /etc/pki/qemu/client-cert.pem
  host.key  /etc/pki/libvirt/private/serverkey.pem /etc/pki/qemu/server-key.pem
            /etc/pki/libvirt/private/clientkey.pem /etc/pki/qemu/client-key.pem`,
	})
	cmd.AddCommand(a.pkiInit(), a.pkiHost(), a.pkiOperator(), a.pkiShow())
	return cmd
}

func (a *app) pkiInit() *cobra.Command {
	var force bool
	var name string
	cmd := &cobra.Command{
		Use:     "init DIR",
		Short:   "Make a certificate authority",
		Long:    "Make a certificate authority: ca.crt and ca.key in DIR. Keep ca.key where no host can read it.",
		Example: "  berth pki init /root/berth-ca",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir := args[0]
			ca, err := pki.Init(dir, name, time.Now(), force)
			if err != nil {
				return err
			}
			return a.printCertificates([]certificate{describe(ca.Cert, filepath.Join(dir, pki.CACertFile))})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace a CA that is there; every certificate it signed becomes worthless")
	cmd.Flags().StringVar(&name, "name", "Berth CA", "the CA's common `name`")
	return cmd
}

// issued is where a certificate goes: --out, or a folder named after it below
// the CA's.
func issued(dir, out, name string) string {
	if out != "" {
		return out
	}
	return filepath.Join(dir, name)
}

func (a *app) pkiHost() *cobra.Command {
	var dir, out string
	var sans, rights []string
	cmd := &cobra.Command{
		Use:   "host NAME",
		Short: "Sign a host's certificate",
		Long: `Sign a certificate for the host whose provider is called NAME: ca.crt, host.crt
and host.key in a folder named after it below the CA's. Run it again to renew.
--san adds every further name and address by which libvirt, QEMU or another
agent reaches the host.

--right conduct lets the host's agent conduct moves between other hosts (berth resize
--share-nothing); those hosts look at it. A host has no right that is not said, also
when its certificate is renewed.`,
		Example: "  berth pki host host-a --dir /root/berth-ca --san host-a.example.org --san 192.0.2.1\n  berth pki host host-c --dir /root/berth-ca --right conduct",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			ca, err := pki.Open(dir)
			if err != nil {
				return err
			}
			to := issued(dir, out, args[0])
			c, err := ca.IssueHost(to, args[0], sans, time.Now(), rightsSaid(rights)...)
			if err != nil {
				return err
			}
			return a.printCertificates([]certificate{describe(c, filepath.Join(to, pki.HostCertFile))})
		},
	}
	cmd.Flags().StringVar(&dir, "dir", defaultPKI, "`folder` of the CA")
	cmd.Flags().StringVar(&out, "out", "", "`folder` to write to (default: NAME below the CA's)")
	cmd.Flags().StringArrayVar(&sans, "san", nil, "further `name` or IP address; may be given again")
	cmd.Flags().StringArrayVar(&rights, "right", nil, "a `right` that it gives: conduct, relay, fence; may be given again")
	return cmd
}

func rightsSaid(names []string) []pki.Right {
	var out []pki.Right
	for _, n := range names {
		out = append(out, pki.Right(n))
	}
	return out
}

func (a *app) pkiOperator() *cobra.Command {
	var dir, out string
	var rights []string
	var reads bool
	cmd := &cobra.Command{
		Use:   "operator NAME",
		Short: "Sign an operator's certificate",
		Long: `Sign a certificate with which a person or tool may ask every host over the network:
ca.crt, operator.crt and operator.key.

--right share-nothing lets its holder ask any agent to conduct a move between two hosts
that share nothing (berth resize --share-nothing), and confirm, revert or abort it.

--read-only signs for somebody who may look at everything and change nothing.`,
		Example: "  berth pki operator alice --dir /root/berth-ca\n  berth status -c host-a --cert /root/berth-ca/operator-alice/operator.crt\n" +
			"  berth pki operator bob --dir /root/berth-ca --right share-nothing",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			ca, err := pki.Open(dir)
			if err != nil {
				return err
			}
			to := issued(dir, out, "operator-"+args[0])
			issue := func() (*x509.Certificate, error) {
				return ca.IssueOperator(to, args[0], time.Now(), rightsSaid(rights)...)
			}
			if reads {
				if len(rights) > 0 {
					return misused("sign a certificate for %s: a reader has no rights: say --read-only or --right", args[0])
				}
				issue = func() (*x509.Certificate, error) { return ca.IssueReader(to, args[0], time.Now()) }
			}
			c, err := issue()
			if err != nil {
				return err
			}
			return a.printCertificates([]certificate{describe(c, filepath.Join(to, pki.OperatorCertFile))})
		},
	}
	cmd.Flags().StringVar(&dir, "dir", defaultPKI, "`folder` of the CA")
	cmd.Flags().StringVar(&out, "out", "", "`folder` to write to (default: operator-NAME below the CA's)")
	cmd.Flags().StringArrayVar(&rights, "right", nil, "a `right` that it gives: share-nothing")
	cmd.Flags().BoolVar(&reads, "read-only", false, "it may look, and change nothing")
	return cmd
}

func (a *app) pkiShow() *cobra.Command {
	return &cobra.Command{
		Use:     "show [FILE|DIR]",
		Short:   "Show certificates: whom they name, which rights they give, who signed them, how long they are valid",
		Example: "  berth pki show\n  berth pki show /root/berth-ca",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			path := defaultPKI
			if len(args) == 1 {
				path = args[0]
			}
			list := []certificate{}
			err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
				if err != nil {
					return err
				}
				if d.IsDir() || (p != path && !strings.HasSuffix(p, ".crt") && !strings.HasSuffix(p, ".pem")) {
					return nil
				}
				c, err := pki.ReadCert(p)
				if err != nil && p != path {
					return nil // a key in a .pem, say; the folder was asked for, not this file
				}
				if err != nil {
					return err
				}
				list = append(list, describe(c, p))
				return nil
			})
			if err != nil {
				return notFound(err, "show certificates: %w", err)
			}
			if len(list) == 0 {
				return notFound(fs.ErrNotExist, "show certificates: there are none in %s: make some with `berth pki init DIR`", path)
			}
			return a.printCertificates(list)
		},
	}
}

// notFound gives an absent file its kind.
func notFound(cause error, format string, args ...any) error {
	if errors.Is(cause, fs.ErrNotExist) {
		return faultNotFound(format, args...)
	}
	return fmt.Errorf(format, args...)
}
