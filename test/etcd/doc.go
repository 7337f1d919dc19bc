// Package etcd is a cluster of real etcd members on loopback, for tests of what stands on it:
// members are killed, stopped, started again, and cut off from the others, by pid and by a proxy
// in front of each. Nothing outlives the test, nor its process.
package etcd
