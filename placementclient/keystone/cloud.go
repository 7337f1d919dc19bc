package keystone

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"

	"berth/internal/fault"
)

// cloud is where and how to log in.
type cloud struct {
	auth      gophercloud.AuthOptions
	region    string
	iface     string // public, internal or admin
	tlsConfig *tls.Config
	from      string // for errors
}

// variable is one of the environment, and the key that it stands for.
type variable struct{ name, key string }

// secretKeys are those whose values nobody else is to know.
var secretKeys = []string{"password", "token", "application_credential_secret"}

// variables are the OS_* variables that say how to log in, by the key of
// clouds.yaml that means the same.
var variables = []variable{
	{"OS_AUTH_URL", "auth_url"},
	{"OS_USERNAME", "username"}, {"OS_USERID", "user_id"}, {"OS_USER_ID", "user_id"}, {"OS_PASSWORD", "password"}, {"OS_TOKEN", "token"},
	{"OS_USER_DOMAIN_ID", "user_domain_id"}, {"OS_USER_DOMAIN_NAME", "user_domain_name"},
	{"OS_PROJECT_ID", "project_id"}, {"OS_TENANT_ID", "project_id"}, {"OS_PROJECT_NAME", "project_name"}, {"OS_TENANT_NAME", "project_name"},
	{"OS_PROJECT_DOMAIN_ID", "project_domain_id"}, {"OS_PROJECT_DOMAIN_NAME", "project_domain_name"},
	{"OS_DOMAIN_ID", "domain_id"}, {"OS_DOMAIN_NAME", "domain_name"}, {"OS_SYSTEM_SCOPE", "system_scope"}, {"OS_TRUST_ID", "trust_id"},
	{"OS_APPLICATION_CREDENTIAL_ID", "application_credential_id"}, {"OS_APPLICATION_CREDENTIAL_NAME", "application_credential_name"},
	{"OS_APPLICATION_CREDENTIAL_SECRET", "application_credential_secret"},
}

// read finds the cloud: the one named, in clouds.yaml; else the one that OS_CLOUD
// names; else what the variables say.
func read(o Options) (cloud, error) {
	name := cmp.Or(o.Cloud, os.Getenv("OS_CLOUD"))
	var c cloud
	parse := []clouds.ParseOption{}
	if name != "" {
		c.from = "cloud " + name
		paths := cloudsFiles(o.CloudsFile)
		parse = append(parse, clouds.WithCloudName(name), clouds.WithLocations(paths...), clouds.WithPublicLocations(beside(paths, "clouds-public.yaml")...))
	} else {
		c.from = "the OS_* variables"
		if os.Getenv("OS_AUTH_URL") == "" {
			return c, fault.New(fault.Invalid, "log in to keystone: no cloud is named, and OS_CLOUD and OS_AUTH_URL are not set")
		}
		auth := map[string]string{}
		for _, v := range variables {
			if value := os.Getenv(v.name); value != "" && auth[v.key] == "" {
				auth[v.key] = value
			}
		}
		// The variables as a file, so that both are understood by the same rules.
		doc, err := json.Marshal(map[string]any{"clouds": map[string]any{"env": map[string]any{"auth": auth}}})
		if err != nil {
			return c, fault.New(fault.Internal, "read the OS_* variables: %w", err)
		}
		parse = append(parse, clouds.WithCloudName("env"), clouds.WithCloudsYAML(bytes.NewReader(doc)))
	}
	auth, endpoint, tlsConfig, err := clouds.Parse(parse...)
	if err != nil {
		return c, fault.New(fault.Invalid, "read how to log in to %s: %w", c.from, err)
	}
	if auth.IdentityEndpoint == "" {
		return c, fault.New(fault.Invalid, "read how to log in to %s: no auth_url", c.from)
	}
	if auth.UserID != "" { // which needs no domain, and gophercloud takes none with it
		auth.DomainID, auth.DomainName = "", ""
	}
	auth.AllowReauth = false // a Session logs in again by itself
	c.auth, c.tlsConfig = auth, tlsConfig
	c.region, c.iface = cmp.Or(o.Region, endpoint.Region), cmp.Or(o.Interface, string(endpoint.Availability))
	return c, nil
}

// Secrets are what nobody else is to know of how to log in to the cloud of o: what its files say,
// and what the OS_* variables of environ ("NAME=value") do. A cloud that cannot be read has none.
func Secrets(o Options, environ []string) []string {
	var out []string
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		switch {
		case name == "OS_CLOUD":
			o.Cloud = cmp.Or(o.Cloud, value)
		case name == "OS_CLIENT_CONFIG_FILE":
			o.CloudsFile = cmp.Or(o.CloudsFile, value)
		case slices.ContainsFunc(variables, func(is variable) bool { return is.name == name && slices.Contains(secretKeys, is.key) }):
			out = append(out, value)
		}
	}
	if c, err := read(o); err == nil {
		out = append(out, c.auth.Password, c.auth.TokenID, c.auth.ApplicationCredentialSecret)
	}
	return slices.DeleteFunc(out, func(s string) bool { return s == "" })
}

// cloudsFiles are the places where clouds.yaml is looked for: the one that is
// named, else the one that OS_CLIENT_CONFIG_FILE names, else those of every
// OpenStack client but for the working directory, which says nothing in a daemon.
func cloudsFiles(named string) []string {
	if named = cmp.Or(named, os.Getenv("OS_CLIENT_CONFIG_FILE")); named != "" {
		return []string{named}
	}
	var out []string
	if dir, err := os.UserConfigDir(); err == nil { // none without a home
		out = append(out, filepath.Join(dir, "openstack", "clouds.yaml"))
	}
	return append(out, "/etc/openstack/clouds.yaml")
}

// beside gives another file in the folder of each.
func beside(paths []string, name string) []string {
	var out []string
	for _, p := range paths {
		out = append(out, filepath.Join(filepath.Dir(p), name))
	}
	return out
}
