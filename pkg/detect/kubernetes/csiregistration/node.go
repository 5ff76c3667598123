package csiregistration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	// csiNodeFirst is the shortest interval between two reads of CSINode, and the first during a fault.
	csiNodeFirst = 15 * time.Second
	// csiNodeSettled is how long after a local change CSINode is read once more: at the first read kubelet may not have
	// handled the change, and an entry from before it would be taken for one from after it.
	csiNodeSettled = 45 * time.Second
)

// csiNodeCache keeps the node's CSINode between runs, so that a healthy node reads it only a few times an hour.
type csiNodeCache struct {
	seldom  time.Duration // between reads without a fault
	longest time.Duration // between reads during a fault

	read finding.Timestamp
	seen string // the local state at the last read
	// the first read after a change of the local state; zero if it was read again since
	changed finding.Timestamp
	wait    time.Duration // until the next read, during a fault
	nodeIDs map[string]string
	err     error
}

// refresh returns the node ID of each driver in the node's CSINode, and reads it again if due.
func (c *csiNodeCache) refresh(ctx context.Context, h *host.Host, now finding.Timestamp,
	drivers []csiDriver) (map[string]string, error) {
	if h.Cluster.CSINode == nil {
		return nil, fmt.Errorf("CSINode: %w", hosterr.ErrNotConfigured)
	}
	seen := localState(drivers)
	if c.due(h, now, seen, drivers) {
		object, err := h.Cluster.CSINode(ctx)
		c.read, c.seen, c.err, c.nodeIDs = now, seen, nil, map[string]string{}
		switch {
		case apierrors.IsNotFound(err): // kubelet creates it with the first driver
		case err != nil:
			c.err = fmt.Errorf("CSINode: %w", err)
		default:
			for _, d := range object.Spec.Drivers {
				c.nodeIDs[d.Name] = d.NodeID
			}
		}
	}
	return c.nodeIDs, c.err
}

// due reports whether CSINode must be read now, and delays the next read if so.
func (c *csiNodeCache) due(h *host.Host, now finding.Timestamp, seen string, drivers []csiDriver) bool {
	age := now.Since(c.read)
	switch {
	case c.read.IsZero():
		c.wait = csiNodeFirst
		return true
	case age < csiNodeFirst:
		return false
	case seen != c.seen:
		c.wait, c.changed = csiNodeFirst, now
		return true
	case !c.changed.IsZero() && now.Since(c.changed) >= csiNodeSettled:
		c.changed = finding.Timestamp{}
		return true
	case c.err != nil || c.lacks(drivers):
		if age < c.wait {
			return false
		}
		c.wait = min(2*c.wait, max(c.longest, csiNodeFirst))
		return true
	case h.Cluster.Still != nil && h.Cluster.Still(age):
		return false // no driver comes or goes without a pod
	default:
		return age >= c.seldom
	}
}

// lacks reports whether a locally healthy driver is not in CSINode.
func (c *csiNodeCache) lacks(drivers []csiDriver) bool {
	return slices.ContainsFunc(drivers, func(d csiDriver) bool {
		return d.Socket != "" && d.InfoErr == nil && d.ProbeErr == nil && d.Ready && c.nodeIDs[d.Name] == ""
	})
}

// localState renders the local state that may make kubelet change CSINode.
func localState(drivers []csiDriver) string {
	var text strings.Builder
	for _, d := range drivers {
		fmt.Fprintf(&text, "%s %s %d %t\n", d.Name, d.Socket, d.Changed, d.InfoErr == nil)
	}
	return text.String()
}
