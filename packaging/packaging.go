// Package packaging holds what is installed beside the binary, for those who
// install it by themselves, as the lab does. The files themselves are the source;
// nothing is written here. Command build makes the deb and the rpm of them.
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
