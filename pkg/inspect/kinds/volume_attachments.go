package kinds

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/volume"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// How often the apiserver is asked for the Node, which names the attached volumes: rarely, and more often while one of
// them looks unused.
const (
	askAttached       = 40 * time.Minute
	askAttachedUnused = 10 * time.Minute // also while a volume is on the node that the Node's status lacks
)

// attached remembers the volumes that the Node's status lists as attached. Each pass compares them again with the node.
type attached struct {
	mu       sync.Mutex // guards the rest
	asked    finding.Timestamp
	answered finding.Timestamp // when the request for names began
	names    []string
	unused   bool // one of them was, in the last pass

	known       []string                     // volumes that any answer has listed: see lacking
	lackedSince map[string]finding.Timestamp // volumes on the node that the answers lack, by ID
}

func volumeAttachmentSpec(volumes *attached) Spec {
	return Spec{
		Kind: object.VolumeAttachment, List: volumes.list, InUse: (*witness.Inventory).VolumeInUse,
		ReportOnly: "attachments belong to the attach-detach controller: `kubectl describe volumeattachment` with the " +
			"name in its facts says why it does not detach",
		Unused: "the volume is neither staged nor in the directory of a pod on this node, and no pod waits for one",
		What:   "a volume of a CSI driver that is attached to this node (`volumesAttached` of the Node) and not used here",
		Harm:   "the volume cannot be attached to another node: its next pod waits there (Multi-Attach)",
	}
}

// list lists the volumes of CSI drivers that are attached to the node according to its status. One is used by the pod
// that has a directory of it; a staged one is another kind's.
func (a *attached) list(ctx context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	if scan.Host.Cluster.Node == nil {
		return nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	failed := a.ask(ctx, scan.Host)
	a.unused = false
	if len(a.names) == 0 {
		return nil, failed
	}
	used, err := volume.UsedByPods(scan.Host)
	if err != nil {
		return nil, err
	}
	staged, err := volume.StagedVolumes(scan.Host)
	if err != nil {
		return nil, err
	}
	at := make(map[string]string) // where a volume is staged, by HandleSum
	for i := range staged {
		s := &staged[i]
		if s.Note.Handle != "" {
			at[volume.HandleSum(s.Note.Handle)] = s.Path
		}
		if s.Sum != "" {
			at[s.Sum] = s.Path
		}
	}
	var objects []object.Object
	for _, name := range a.names {
		plugin, handle, ok := strings.Cut(name, "^")
		driver, csi := strings.CutPrefix(plugin, "kubernetes.io/csi/")
		if !ok || !csi || handle == "" {
			continue // an in-tree plugin's
		}
		sum := volume.HandleSum(handle)
		o := object.Object{Kind: object.VolumeAttachment, ID: name, Identity: named("name", name),
			Facts: object.Facts("driver", driver, "volumeHandle", handle, witness.HandleSum, sum,
				"attachment", attachmentName(handle, driver, scan.Host.NodeName))}
		attachUsers(&o, used.Handles[sum], at[sum])
		doubtUnused(&o, used)
		a.unused = a.unused || o.Pod.UID == "" && o.InUse == "" && o.Doubt == ""
		objects = append(objects, o)
	}
	return objects, failed
}

// ask gets the Node when it is due. After a failure the last answer remains valid.
func (a *attached) ask(ctx context.Context, h *host.Host) error {
	now, every := h.Clock(), askAttached
	if a.unused || len(a.lackedSince) > 0 {
		every = askAttachedUnused
	}
	if !a.asked.IsZero() && a.asked.Boot == now.Boot && now.Since(a.asked) < every {
		return nil
	}
	a.asked = now
	node, err := h.Cluster.Node(ctx)
	if err != nil {
		return hosterr.Ignore(err, hosterr.ErrNotConfigured)
	}
	a.names, a.answered = a.names[:0], now
	for _, v := range node.Status.VolumesAttached {
		a.names = append(a.names, strings.ToValidUTF8(string(v.Name), "\ufffd"))
	}
	a.learn(a.names)
	for _, v := range node.Status.VolumesInUse {
		a.learn([]string{string(v)})
	}
	return nil
}

// attachmentName is the name of the VolumeAttachment object: pkg/volume/csi/csi_attacher.go, getAttachmentName.
func attachmentName(handle, driver, node string) string {
	sum := sha256.Sum256([]byte(handle + driver + node))
	return "csi-" + hex.EncodeToString(sum[:])
}
