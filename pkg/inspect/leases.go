package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	leasesapi "github.com/containerd/containerd/v2/core/leases"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cni"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// listLeases lists containerd's leases in the namespace of Kubernetes. The CRI plugin makes one for each sandbox
// before anything else of it, under the sandbox's ID, without labels and without end, and deletes it when it removes
// the sandbox (internal/cri/server/sandbox_run.go): one that a crash left behind stays for ever.
func listLeases(_ context.Context, scan *Scan) ([]Object, error) {
	leases, err := scan.leases()
	if errors.Is(err, hosterr.ErrNotConfigured) {
		return nil, nil // another runtime
	}
	if err != nil {
		return nil, err
	}
	objects := make([]Object, 0, len(leases))
	for _, lease := range leases {
		created := lease.CreatedAt
		o := Object{
			Kind: Lease, ID: lease.ID, Foreign: foreignLease(lease),
			Identity: Identity{"id": lease.ID, "created": strconv.FormatInt(created.UnixNano(), 10)},
			Facts:    facts("created", created.UTC().Format(time.RFC3339)),
		}
		if o.Foreign == "" {
			o.SandboxID = o.ID
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// foreignLease says why a lease is no sandbox's.
func foreignLease(lease leasesapi.Lease) string {
	if !host.IsContainerID(lease.ID) {
		return "no sandbox's: its ID has another form"
	}
	for _, label := range sortedLabels(lease.Labels) {
		return fmt.Sprintf("no sandbox's: it carries the label %s, and the CRI plugin gives none", label)
	}
	return ""
}

func sortedLabels(labels map[string]string) []string {
	names := make([]string, 0, len(labels))
	for name := range labels {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// leaseOwners returns whose sandbox each ID is, as the runtime and the CNI cache say.
func leaseOwners(sandboxes []*cri.PodSandbox, attachments []cni.Attachment) map[string][]owner {
	owners := make(map[string][]owner)
	for _, s := range sandboxes {
		add(owners, s.GetId(), owner{s.GetId(), podOfSandbox(s)})
	}
	for _, a := range attachments {
		if a.ContainerID != "" {
			add(owners, a.ContainerID, owner{a.ContainerID, podOfAttachment(a)})
		}
	}
	return owners
}

// explainLeases looks what of the runtime still carries the sandbox of a suspect lease: containerd's record of the
// sandbox, which a starting one has right after the lease; its task; or a process, as the shim, that has the ID on
// its command line.
func explainLeases(ctx context.Context, scan *Scan, suspects []*Object) {
	suspects = slices.DeleteFunc(slices.Clone(suspects), func(o *Object) bool { return o.Kind != Lease })
	if len(suspects) == 0 {
		return
	}
	carriers, err := sandboxCarriers(ctx, scan, suspects)
	for _, o := range suspects {
		o.Carried = carriers[o.ID]
		if err != nil && o.Carried == "" {
			o.Doubt = "whether anything still carries its sandbox: " + err.Error()
		}
	}
}

// sandboxCarriers says what carries the sandboxes of leases, by ID.
func sandboxCarriers(ctx context.Context, scan *Scan, leases []*Object) (map[string]string, error) {
	carriers := make(map[string]string)
	table, err := scan.processes()
	if err != nil {
		return nil, err
	}
	for _, pid := range table.pids {
		line, err := runtimeCommand(scan.Host, pid)
		if err != nil {
			return nil, err
		}
		for _, o := range leases {
			if strings.Contains(line, o.ID) {
				carriers[o.ID] = fmt.Sprintf("process %d names it on its command line", pid)
			}
		}
	}
	tasks, err := ask(ctx, "containerd", scan.Host.Containerd.Tasks)
	if err != nil {
		return carriers, fmt.Errorf("containerd's tasks: %w", err)
	}
	for _, task := range tasks {
		carriers[task.GetID()] = "containerd has a task of it"
	}
	records, err := ask(ctx, "containerd", scan.Host.Containerd.Sandboxes)
	if err != nil {
		return carriers, fmt.Errorf("containerd's records of sandboxes: %w", err)
	}
	for _, id := range records {
		carriers[id] = "containerd has a record of it"
	}
	return carriers, nil
}

// runtimeCommand returns the command line of a process that a runtime started for a sandbox; empty of any other.
// Those of others are not read: a process that hangs in the kernel can hang whoever reads its command line.
func runtimeCommand(h *host.Host, pid int) (string, error) {
	stat, err := h.ProcStat(pid)
	if err == nil && slices.Contains([]string{"containerd-shim", "runc", "crun", "conmon"}, stat.Comm) {
		var args []string
		args, err = h.ProcArgs(pid)
		return strings.Join(args, " "), ignoreGone(err)
	}
	return "", ignoreGone(err)
}

func ignoreGone(err error) error {
	if gone(err) {
		return nil
	}
	return err
}

// notesDeadLease remembers that a lease was proven to be a leftover: it then speaks no more for the network of its
// sandbox.
func (j *evaluation) notesDeadLease(o Assessment) {
	if o.Kind == Lease && o.Verdict == Leftover {
		j.deadLeases[o.SandboxID] = true
	}
}

// onlyDeadLease reports whether all that containerd knows of the sandbox of o is a lease that is itself a leftover.
func (j *evaluation) onlyDeadLease(o *Object) bool {
	return networked(o.Kind) && j.deadLeases[o.SandboxID] && j.truth.Containerd.Known[o.SandboxID] == leaseName
}

// leaseName is what ContainerdTruth.Known calls a lease.
const leaseName = "lease"

// needsSandboxGone reports whether the runtime must not know the sandbox of an object before that can be a leftover.
func needsSandboxGone(kind Kind) bool { return networked(kind) || kind == Lease }
