package csiregistration

import (
	"encoding/json"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/detect"
)

const (
	csiPastKey    = "csi-registration/drivers"
	csiPastDriver = 256 // drivers remembered at most
)

// csiHistory is what is remembered of the drivers that were once in this node's CSINode.
type csiHistory struct {
	Drivers map[string]pastDriver `json:"drivers"`
	memory  detect.StateStore
	looked  time.Duration // since boot, when CSINode was last read; 0 for never
}

type pastDriver struct {
	Absent time.Duration `json:"absent,omitempty"` // for how long it has been seen not to be in CSINode
	Socket string        `json:"socket,omitempty"` // its registration socket
	Folder string        `json:"folder,omitempty"` // its folder in <kubelet root>/plugins
}

// loadPast reads what an earlier agent remembered. What is malformed is forgotten.
func loadPast(memory detect.StateStore) csiHistory {
	p := csiHistory{Drivers: map[string]pastDriver{}, memory: memory}
	if memory == nil {
		return p
	}
	data, ok := memory.Load(csiPastKey)
	if !ok {
		return p
	}
	var kept csiHistory
	if json.Unmarshal(data, &kept) != nil {
		return p
	}
	for name, d := range kept.Drivers {
		if kubelet.IsCSIDriverName(name) && len(p.Drivers) < csiPastDriver {
			p.Drivers[name] = d
		}
	}
	return p
}

// registered remembers the drivers that CSINode lists.
func (p *csiHistory) registered(nodeIDs map[string]string, drivers []csiDriver) {
	changed := false
	for name := range nodeIDs {
		old, known := p.Drivers[name]
		if !kubelet.IsCSIDriverName(name) || !known && len(p.Drivers) >= csiPastDriver {
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
	p.save(changed)
}

// forget drops drivers that have not been in CSINode for long, and that nothing else on the node asks for.
func (p *csiHistory) forget(nodeIDs map[string]string, drivers []csiDriver, after, up time.Duration) {
	changed := false
	var passed time.Duration
	if p.looked > 0 {
		passed = min(max(up-p.looked, 0), 10*time.Minute) // looks that were missed are no proof
	}
	p.looked = up
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
		wanted := d.Fatal || len(d.Pods) > 0 || len(d.UsedBy) > 0 || d.Socket != ""
		if known && !wanted && old.Absent >= after {
			delete(p.Drivers, d.Name)
			changed = true
		}
	}
	p.save(changed)
}

// nameOfSocket returns the driver whose registration socket this was.
func (p *csiHistory) nameOfSocket(socket string) (string, bool) {
	for name, d := range p.Drivers {
		if d.Socket == socket {
			return name, true
		}
	}
	return "", false
}

func (p *csiHistory) save(changed bool) {
	if !changed || p.memory == nil {
		return
	}
	if data, err := json.Marshal(p); err == nil { // a map of strings and numbers: it cannot fail
		p.memory.Save(csiPastKey, data)
	}
}
