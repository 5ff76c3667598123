// Package kinds has the kinds of objects that a pod can leave behind. A file has a kind: its spec and its lister, which
// reads the objects that exist on the node, whoever owns them.
package kinds

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// Lister lists the existing objects of one kind on the node, whoever owns them. An error together with objects means
// that some could not be read: objects not listed are unknown. A lister never blocks on an object: no path below a
// mount is looked up.
type Lister func(ctx context.Context, scan *hostscan.Scan) ([]object.Object, error)

// Spec describes a kind of object. A new kind is a file with its spec and its lister, and a name in Specs.
type Spec struct {
	object.Kind
	List Lister
	// FromRuntime marks the kinds listed by asking the runtime. They are listed after local objects, so that the
	// runtime's answers are newer than the objects they are compared with: see witness.Inventory.
	FromRuntime bool
	// GoneFrom names the witnesses that must not know the object's sandbox or container either (Runtime, Containerd),
	// besides the apiserver and kubelet, which must not know its pod.
	GoneFrom []string
	// OptIn marks the kinds that the daemon releases only if the configuration names them: see release.Settings.
	OptIn bool
	// LittleHarm marks the kinds of whose leftovers alone the agent does not warn.
	LittleHarm bool
	// MinAge is for how long an object must have been seen, if longer than the grace period.
	MinAge time.Duration
	// ReportOnly is the reason why the agent never releases objects of this kind; empty if pkg/remediate has an action.
	// Such objects are evaluated like all others. They stop no release, and do not count as orphaned pods.
	ReportOnly string
	// InUse returns the user of an object that pods may share, according to the witnesses; empty: none.
	InUse func(*witness.Inventory, *object.Object) string
	// Unused tells which further checks were made if the pod of an object of this kind is not named.
	Unused string

	What string // an object of this kind, and its owner
	Harm string // what it does to the node and to other pods
}

// Stage is the part of a pass in which objects of the kind are listed.
func (s Spec) Stage() hostscan.Stage {
	if s.FromRuntime {
		return hostscan.Runtime
	}
	return hostscan.Local
}

// ofSandbox are the witnesses that know a sandbox and its containers.
var ofSandbox = []string{object.Runtime, object.Containerd}

// Specs lists all kinds, in the order in which leftovers of one pod are released: those with an action, those of little
// harm, and the report-only ones. It is for one inspector, since some listers remember earlier passes.
func Specs() []Spec {
	var volumes attached
	return []Spec{
		sandboxSpec(), containerSpec(), containerdContainerSpec(), processSpec(), shimSpec(), rootfsSpec(),
		attachmentSpec(), netnsSpec(), linkSpec(), ipamLeaseSpec(), leaseSpec(),
		sandboxDirectorySpec(), mountSpec(), cgroupSpec(), podDirectorySpec(),

		systemdUnitSpec(), podLogsSpec(),

		logLinkSpec(), stagedVolumeSpec(), pluginSocketSpec(), deviceAllocationSpec(), blockDeviceSpec(), taskSpec(),
		snapshotSpec(), portMappingSpec(), volumeAttachmentSpec(&volumes), detachedVolumeSpec(&volumes),
		storageSessionSpec(), strayCgroupSpec(), runFileSpec(), hostMountSpec(), sharedMemorySpec(),
	}
}

// Kinds are all kinds, in the order in which leftovers of one pod are released.
func Kinds() []object.Kind {
	specs := Specs()
	kinds := make([]object.Kind, len(specs))
	for i, spec := range specs {
		kinds[i] = spec.Kind
	}
	return kinds
}

// allSpecs are Specs by their kind, made once: they are asked for each object of each pass.
var allSpecs = sync.OnceValue(func() map[object.Kind]*Spec {
	specs := Specs()
	byKind := make(map[object.Kind]*Spec, len(specs))
	for i := range specs {
		byKind[specs[i].Kind] = &specs[i]
	}
	return byKind
})

// Of returns the spec of a kind; an empty one if the kind does not exist.
func Of(kind object.Kind) *Spec {
	if spec := allSpecs()[kind]; spec != nil {
		return spec
	}
	return &Spec{Kind: kind}
}

// Minor reports whether a pod with only objects of such kinds is worth no warning: kinds of little harm, and
// report-only kinds.
func (s *Spec) Minor() bool { return s.LittleHarm || s.ReportOnly != "" }

// Releasable returns the report without the report-only kinds, and without the errors of their listers.
func Releasable(r object.Report) object.Report {
	r.Objects = slices.DeleteFunc(slices.Clone(r.Objects),
		func(o object.Assessment) bool { return Of(o.Kind).ReportOnly != "" })
	r.Errors = slices.DeleteFunc(slices.Clone(r.Errors),
		func(f object.Failure) bool { return Of(object.Kind(f.What)).ReportOnly != "" })
	return r
}
