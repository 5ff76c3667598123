package kinds

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	leasesapi "github.com/containerd/containerd/v2/core/leases"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cni"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

func leaseSpec() Spec {
	return Spec{
		Kind: object.Lease, List: listLeases, FromRuntime: true, GoneFrom: ofSandbox,
		What: "containerd's lease of a sandbox",
		Harm: "keeps containerd's garbage collector from snapshots and content: disk space",
	}
}

// listLeases lists containerd's leases in the namespace k8s.io. The CRI plugin creates one for each sandbox before
// anything else, with the sandbox's ID, without labels and without expiry, and deletes it when it removes the sandbox
// (internal/cri/server/sandbox_run.go): one that a crash left behind stays forever.
func listLeases(_ context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	leases, err := scan.Leases()
	if err != nil {
		return nil, hosterr.Ignore(err, hosterr.ErrNotConfigured) // another runtime
	}
	objects := make([]object.Object, 0, len(leases))
	for _, lease := range leases {
		created := lease.CreatedAt
		o := object.Object{
			Kind: object.Lease, ID: lease.ID, Foreign: foreignLease(lease),
			Identity: object.Identity{Runtime: object.RuntimeID{ID: lease.ID, Created: created.UnixNano()}},
			Facts:    object.Facts("created", created.UTC().Format(time.RFC3339)),
		}
		if o.Foreign == "" {
			o.SandboxID = o.ID
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// foreignLease returns why a lease does not belong to a sandbox.
func foreignLease(lease leasesapi.Lease) string {
	if !host.IsContainerID(lease.ID) {
		return "not a sandbox's: its ID has another format"
	}
	for _, label := range slices.Sorted(maps.Keys(lease.Labels)) {
		return fmt.Sprintf("not a sandbox's: it has the label %s, and the CRI plugin sets none", label)
	}
	return ""
}

// leaseOwners returns the owners of each sandbox ID according to the runtime and the CNI cache.
func leaseOwners(sandboxes []*cri.PodSandbox, attachments []cni.Attachment) map[string][]Owner {
	owners := make(map[string][]Owner)
	for _, s := range sandboxes {
		add(owners, s.GetId(), Owner{s.GetId(), witness.PodOfSandbox(s)})
	}
	for _, a := range attachments {
		if a.ContainerID != "" {
			add(owners, a.ContainerID, Owner{a.ContainerID, podOfAttachment(a)})
		}
	}
	return owners
}

// ExplainLeases finds the users, in the runtime, of the sandbox of a suspect lease: containerd's record of the sandbox,
// which is created right after the lease; its task; or a process, such as the shim, with the ID on its command line.
func ExplainLeases(ctx context.Context, scan *hostscan.Scan, suspects []*object.Object) {
	suspects = slices.DeleteFunc(slices.Clone(suspects), func(o *object.Object) bool { return o.Kind != object.Lease })
	if len(suspects) == 0 {
		return
	}
	carriers, err := sandboxUsers(ctx, scan, suspects)
	for _, o := range suspects {
		o.InUse = carriers[o.ID]
		if err != nil && o.InUse == "" {
			o.Doubt = "whether anything still uses its sandbox: " + err.Error()
		}
	}
}

// sandboxUsers returns the users of the sandboxes of leases, by ID.
func sandboxUsers(ctx context.Context, scan *hostscan.Scan, leases []*object.Object) (map[string]string, error) {
	carriers := make(map[string]string)
	table, err := scan.Processes()
	if err != nil {
		return nil, err
	}
	for _, pid := range table.PIDs {
		line, err := runtimeCommand(scan.Host, pid)
		if err != nil {
			return nil, err
		}
		for _, o := range leases {
			if strings.Contains(line, o.ID) {
				carriers[o.ID] = fmt.Sprintf("process %d has it on its command line", pid)
			}
		}
	}
	tasks, err := host.Ask(ctx, "containerd", scan.Host.Containerd.Tasks)
	if err != nil {
		return carriers, fmt.Errorf("containerd's tasks: %w", err)
	}
	for _, task := range tasks {
		carriers[task.GetID()] = "containerd has a task for it"
	}
	records, err := host.Ask(ctx, "containerd", scan.Host.Containerd.Sandboxes)
	if err != nil {
		return carriers, fmt.Errorf("containerd's records of sandboxes: %w", err)
	}
	for _, id := range records {
		carriers[id] = "containerd has a record of it"
	}
	return carriers, nil
}

// runtimeCommand returns the command line of a process that a runtime started for a sandbox; empty for any other. Other
// command lines are not read: reading that of a process that hangs in the kernel can hang as well.
func runtimeCommand(h *host.Host, pid int) (string, error) {
	stat, err := h.ProcStat(pid)
	if err == nil && slices.Contains([]string{"containerd-shim", "runc", "crun", "conmon"}, stat.Comm) {
		var args []string
		args, err = h.ProcArgs(pid)
		return strings.Join(args, " "), proc.UnlessGone(err)
	}
	return "", proc.UnlessGone(err)
}
