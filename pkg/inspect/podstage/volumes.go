package podstage

import (
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/podstate"
)

// volumes answers for a pod with volumes that are not set up, and names the missing parts as far as they are known.
func (f Facts) volumes(a *Answer) {
	a.Stage = Volumes
	a.Blocker = "volumes are not set up: " + strings.Join(f.Local.Missing, ", ")
	a.Next = f.kubectl("describe pod " + f.Name)
	event := f.event("FailedMount", "FailedAttachVolume", "FailedMapVolume")
	for _, try := range []func(*Answer) bool{f.missingObject, f.unregistered, f.claim} {
		if try(a) {
			return
		}
	}
	if event != "" {
		a.Blocker += ": " + event
		return
	}
	if reasons := f.unasked(); reasons != "" {
		a.Blocker += "; why could not be told: " + reasons
	}
	f.wait(a, patience)
}

// missingObject finds a ConfigMap or Secret that does not exist.
func (f Facts) missingObject(a *Answer) bool {
	for _, o := range f.Objects {
		if o.Err == nil && !o.Exists {
			a.Blocker = "volume " + o.Volume + " needs " + o.Kind + " " + f.Namespace + "/" + o.Name +
				", which does not exist"
			a.Next = "create it, or correct the pod: " + f.kubectl("get "+strings.ToLower(o.Kind)+" "+argument(o.Name))
			return true
		}
	}
	return false
}

// unregistered finds a CSI driver not registered on the node.
func (f Facts) unregistered(a *Answer) bool {
	if !f.Drivers.Asked || f.Drivers.Err != nil {
		return false
	}
	for volume, driver := range f.drivers() {
		if driver != "" && !slices.Contains(f.Drivers.Registered, driver) {
			a.Blocker = "volume " + volume + " needs CSI driver " + driver + ", which has not registered on this node"
			a.Next = "look at the driver's pod on this node; nodeagent check csi-registration"
			return true
		}
	}
	return false
}

// drivers returns the CSI drivers needed by the volumes that are not set up, by volume.
func (f Facts) drivers() map[string]string {
	drivers := map[string]string{}
	if pod, _ := f.known(); pod != nil {
		for _, v := range podstate.MountedVolumes(pod) {
			if v.CSI != nil && f.IsMissing(v.Name) {
				drivers[v.Name] = v.CSI.Driver
			}
		}
	}
	for _, c := range f.Claims {
		drivers[c.Volume] = c.Driver
	}
	return drivers
}

// IsMissing reports whether a volume of the pod is not set up.
func (f Facts) IsMissing(volume string) bool {
	return slices.ContainsFunc(f.Local.Missing, func(m string) bool { return strings.HasPrefix(m, volume+" (") })
}

// claim finds a claim that is not bound, or whose volume is not attached.
func (f Facts) claim(a *Answer) bool {
	for _, c := range f.Claims {
		switch {
		case c.Missing != "":
			a.Blocker = "volume " + c.Volume + " (claim " + c.Name + "): " + c.Missing + " does not exist"
		case c.Err != nil:
			continue
		case c.Phase != "" && c.Phase != "Bound":
			a.Blocker = "volume " + c.Volume + ": claim " + c.Name + " is " + c.Phase
		case c.Attachment != "" && !c.Attached:
			a.Blocker = "volume " + c.Volume + " (claim " + c.Name + ", volume " + c.PV + ", driver " + c.Driver +
				") is not attached to this node"
			if c.Attaching != "" {
				a.Blocker += ": " + c.Attaching
			}
			a.Next = "kubectl describe volumeattachment " + argument(c.Attachment) + "; look at the driver's controller"
			if c.Attaching == "" {
				f.wait(a, patience)
			}
			return true
		default:
			continue
		}
		a.Next = f.kubectl("describe pvc " + argument(c.Name))
		return true
	}
	return false
}

// unasked is why the cause of missing volumes could not be found.
func (f Facts) unasked() string {
	var reasons []string
	add := func(err error) {
		if err != nil && !slices.Contains(reasons, reason(err)) {
			reasons = append(reasons, reason(err))
		}
	}
	for _, o := range f.Objects {
		add(o.Err)
	}
	for _, c := range f.Claims {
		add(c.Err)
	}
	add(f.Drivers.Err)
	add(f.EventsErr)
	return strings.Join(reasons, "; ")
}
