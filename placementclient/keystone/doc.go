// Package keystone logs in to OpenStack's Keystone for a placementclient.Client:
// it gives the token of each request and finds Placement in the service
// catalogue. It is the only user of gophercloud.
//
// It reads clouds.yaml and secure.yaml, or the OS_* variables, once, when a
// Session is made; it writes nothing. A password or the secret of an application
// credential is kept in memory, since a new token is needed whenever the last one
// has expired or was revoked, and is never logged.
//
// A token is used until its time is nearly over or until Placement refuses it.
// However many requests are refused at the same time, one login serves them all,
// and credentials that Keystone refused are not tried again at once: accounts are
// locked for less.
package keystone
