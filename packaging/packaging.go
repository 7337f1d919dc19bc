// Package packaging holds what is installed beside the binary, for those who
// install it by themselves: the lab, and later the packages' own tests. The files
// themselves are the source; nothing is written here.
package packaging

import _ "embed"

// GuardHook is libvirt's hook script, to be installed as
// /etc/libvirt/hooks/qemu.d/50-berth. Its line `berth=/usr/bin/berth` names the
// binary.
//
//go:embed hooks/qemu.d/50-berth
var GuardHook string

// Config is the sample configuration, installed as /etc/berth/berth.toml.
//
//go:embed berth.toml
var Config string
