package cuda

import (
	"tenon.dev/fault"
	"tenon.dev/internal/rt"
	"tenon.dev/internal/snapshot"
)

// SnapshotOf returns one snapshot of several devices, as PyTorch's snapshots cover all devices of a process: their segments by address, and
// the history of each. It calls Device.Snapshot for one device after the other. The devices must have different numbers, and at least one
// must be given; the settings are those of the first.
func SnapshotOf(devices ...*Device) (all *Snapshot, err error) {
	defer returned(&err)
	if len(devices) == 0 {
		return nil, fault.New(fault.Invalid, "a snapshot of no device was asked for; name at least one")
	}
	parts := make([]*snapshot.Snapshot, len(devices))
	for i, d := range devices {
		if err := (*rt.Device)(d).Usable(); err != nil {
			return nil, err
		}
		s, err := d.Snapshot()
		if err != nil {
			return nil, err
		}
		parts[i] = s.s
	}
	s, err := snapshot.Join(parts)
	if err != nil {
		return nil, err
	}
	return &Snapshot{s: s}, nil
}
