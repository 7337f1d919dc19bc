package main

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/pki"
	"berth/placement"
)

func (a *app) placementBackupCommand() *cobra.Command {
	from := ""
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write all that a running embedded Placement knows to a file",
		Long: `Ask a running embedded Placement for all it knows at one moment, and write it to
FILE, which is replaced as a whole. The server goes on working meanwhile. One that
asks for certificates gives its backup to operators alone.`,
		Example: `  berth placement backup /var/backups/placement.json
  berth placement backup --from https://192.0.2.10:8778 --cert operator.crt placement.json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			config, err := a.placementTLS(from)
			if err != nil {
				return err
			}
			return placement.Backup(cmd.Context(), from, config, args[0])
		},
	}
	cmd.Flags().StringVar(&from, "from", "http://127.0.0.1:8778", "`url` of the server: http, https or unix:/path")
	return cmd
}

func (a *app) placementRestoreCommand() *cobra.Command {
	db := ""
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make an embedded Placement's database of a backup",
		Long: `Make the database at --db of a backup. The database must not be there: end its
server and move it away first. Start the server on it afterwards; agents then find
what is older than they remember and mend what is theirs.`,
		Example: `  berth placement restore /var/backups/placement.json --db /var/lib/berth/placement.db`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if db == "" {
				return misused("say --db FILE: the database to make")
			}
			log, err := newLogger(a.err, "warn")
			if err != nil {
				return err
			}
			return placement.Restore(cmd.Context(), args[0], db, log)
		},
	}
	cmd.Flags().StringVar(&db, "db", "", "database `file` to make")
	return cmd
}

// placementTLS is how to speak to an https url, with the certificate of the
// command line where one was named; nil for the others.
func (a *app) placementTLS(to string) (*tls.Config, error) {
	if strings.HasPrefix(to, "unix:/") {
		return nil, nil
	}
	u, err := url.Parse(to)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, misused("--from %q: want http://HOST:PORT, https://HOST:PORT or unix:/path", to)
	}
	if u.Scheme == "http" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if a.certFile == "" && a.caFile != "" {
		pem, err := os.ReadFile(a.caFile)
		if err != nil {
			return nil, misused("read --ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, misused("read --ca %s: there is no certificate in it", a.caFile)
		}
	}
	if a.certFile == "" {
		return config, nil
	}
	p := pki.Paths{Cert: a.certFile, Key: a.keyFile, CA: a.caFile}
	if p.Key == "" {
		p.Key = strings.TrimSuffix(p.Cert, filepath.Ext(p.Cert)) + ".key"
	}
	if p.CA == "" {
		p.CA = filepath.Join(filepath.Dir(p.Cert), pki.CACertFile)
	}
	id, err := pki.Load(p, time.Now())
	if err != nil {
		return nil, err
	}
	config.Certificates, config.RootCAs = []tls.Certificate{id.Certificate}, id.Roots
	return config, nil
}
