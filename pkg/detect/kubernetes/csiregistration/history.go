package csiregistration

import (
	"time"

	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/detect"
)

const (
	historyKey    = "csi-registration/drivers"
	maxRemembered = 256 // drivers
)

// csiHistory holds the drivers that were once in this node's CSINode.
type csiHistory struct {
	Drivers map[string]rememberedDriver `json:"drivers"`
	saved   detect.Saved[csiHistory]
	read    time.Duration // since boot, when CSINode was last read; 0 for never
}

type rememberedDriver struct {
	Absent time.Duration `json:"absent,omitempty"` // for how long it has been missing in CSINode
	Socket string        `json:"socket,omitempty"` // its registration socket
	Folder string        `json:"folder,omitempty"` // its folder in <kubelet root>/plugins
}

func loadHistory(store detect.StateStore) csiHistory {
	p := csiHistory{Drivers: map[string]rememberedDriver{}, saved: detect.Saved[csiHistory]{Store: store,
		Key: historyKey}}
	kept, _ := p.saved.Load(func(csiHistory) bool { return true })
	for name, d := range kept.Drivers {
		if kubelet.IsCSIDriverName(name) && len(p.Drivers) < maxRemembered {
			p.Drivers[name] = d
		}
	}
	return p
}

// registered adds the drivers that CSINode lists.
func (p *csiHistory) registered(nodeIDs map[string]string, drivers []csiDriver) {
	changed := false
	for name := range nodeIDs {
		old, known := p.Drivers[name]
		if !kubelet.IsCSIDriverName(name) || !known && len(p.Drivers) >= maxRemembered {
			continue
		}
		d := old
		d.Absent = 0
		for _, driver := range drivers {
			if driver.Name == name && driver.Endpoint != "" {
				d.Socket, d.Folder = driver.Socket, folderOf(driver.Endpoint)
			}
		}
		if !known || d != old {
			p.Drivers[name], changed = d, true
		}
	}
	if changed {
		p.saved.Save(*p)
	}
}

// forget drops drivers that CSINode has lacked for long and the node does not need. A pod that merely names a
// driver does not keep it: its author only needs the right to create pods.
func (p *csiHistory) forget(nodeIDs map[string]string, drivers []csiDriver, after, up time.Duration) {
	changed := false
	var passed time.Duration
	if p.read > 0 {
		passed = min(max(up-p.read, 0), 10*time.Minute) // runs that did not happen prove nothing
	}
	p.read = up
	for name, d := range p.Drivers {
		if _, there := nodeIDs[name]; !there {
			before := d.Absent
			d.Absent += passed
			p.Drivers[name] = d
			changed = changed || before.Truncate(time.Hour) != d.Absent.Truncate(time.Hour)
		}
	}
	for _, d := range drivers {
		old, known := p.Drivers[d.Name]
		wanted := d.Listed || len(d.Pods) > 0 || d.Mounted || d.Socket != ""
		if known && !wanted && old.Absent >= after {
			delete(p.Drivers, d.Name)
			changed = true
		}
	}
	if changed {
		p.saved.Save(*p)
	}
}

// nameOfSocket returns the driver that had this registration socket.
func (p *csiHistory) nameOfSocket(socket string) (string, bool) {
	for name, d := range p.Drivers {
		if d.Socket == socket {
			return name, true
		}
	}
	return "", false
}
