// Package packages builds the deb and the rpm and does with them what a host does:
// installs, upgrades, removes and purges them by the real dpkg and rpm, beside a real
// libvirtd with a guest that runs all the while.
//
// The machine that it runs on is not touched: each test sees this machine's files through
// an overlay whose upper layer lies in memory, in namespaces of its own that end with the
// test. It needs root and what `lab install -packaging` adds.
package packages
