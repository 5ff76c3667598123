package verdict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// evidenceJSON is the JSON form of Evidence.
type evidenceJSON struct {
	Objects   objectsJSON               `json:"objects"`
	Inventory witness.Inventory         `json:"inventory"`
	Errors    map[string]*RecordedError `json:"errors"` // of the inventory: see inventoryErrors
	History   object.History            `json:"history"`
	Settings  object.Settings           `json:"settings"`
	Now       finding.Timestamp         `json:"now"`
	Failures  []object.Failure          `json:"failures"`
}

// objectJSON has all fields of an object. The JSON form of Object, which is a contract, omits some.
type objectJSON struct {
	object.Object
	Foreign string `json:"foreign,omitempty"`
	Doubt   string `json:"doubt,omitempty"`
	InUse   string `json:"inUse,omitempty"`
}

// objectsJSON is a list that does not become larger than maxObjects, however short its elements.
type objectsJSON []objectJSON

// maxObjects is more than any node can have.
const maxObjects = 200_000

// UnmarshalJSON reads a list.
func (l *objectsJSON) UnmarshalJSON(data []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if start, err := decoder.Token(); err != nil || start != json.Delim('[') {
		return errors.Join(fmt.Errorf("objects: %v is no list", start), err)
	}
	for decoder.More() {
		if len(*l) == maxObjects {
			return fmt.Errorf("more than %d objects", maxObjects)
		}
		var o objectJSON
		if err := decoder.Decode(&o); err != nil {
			return err
		}
		*l = append(*l, o)
	}
	return nil
}

// MarshalJSON writes everything that matters to an evaluation.
func (e Evidence) MarshalJSON() ([]byte, error) {
	wire := evidenceJSON{Objects: make(objectsJSON, 0, len(e.Objects)), Inventory: e.Inventory, History: e.History,
		Errors: make(map[string]*RecordedError), Settings: e.Settings, Now: e.Now, Failures: e.Failures}
	for _, o := range e.Objects {
		wire.Objects = append(wire.Objects, objectJSON{o, o.Foreign, o.Doubt, o.InUse})
	}
	for name, err := range inventoryErrors(&e.Inventory) {
		if *err != nil {
			wire.Errors[name] = RecordError(*err)
		}
	}
	return json.Marshal(wire)
}

// UnmarshalJSON reads the output of MarshalJSON. An unknown field is an error: evidence of another version must not be
// evaluated without it.
func (e *Evidence) UnmarshalJSON(data []byte) error {
	var wire evidenceJSON
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&wire); err != nil {
		return err
	}
	*e = Evidence{Objects: make([]object.Object, 0, len(wire.Objects)), Inventory: wire.Inventory, History: wire.History,
		Settings: wire.Settings, Now: wire.Now, Failures: wire.Failures}
	for _, w := range wire.Objects {
		o := w.Object
		o.Foreign, o.Doubt, o.InUse = w.Foreign, w.Doubt, w.InUse
		e.Objects = append(e.Objects, o)
	}
	errs := inventoryErrors(&e.Inventory)
	for name, recorded := range wire.Errors {
		field, ok := errs[name]
		if !ok {
			return fmt.Errorf("unknown error %q of the inventory", name)
		}
		if recorded != nil {
			*field = recorded
		}
	}
	return nil
}

// inventoryErrors returns the fields of an inventory that hold an error, by the names under which they are recorded.
// JSON leaves them out.
func inventoryErrors(t *witness.Inventory) map[string]*error {
	return map[string]*error{
		"runtime":         &t.Runtime.Err,
		"runtimeProcess":  &t.Runtime.AgeErr,
		"containerd":      &t.Containerd.Err,
		"kubelet":         &t.Kubelet.Err,
		"kubeletProcess":  &t.Kubelet.AgeErr,
		"kubeletWorking":  &t.Kubelet.WorkingErr,
		"kubeletRefused":  &t.Kubelet.Refused,
		"kubeletHealth":   &t.Kubelet.HealthErr,
		"kubeletRecord":   &t.Kubelet.RecordErr,
		"apiserver":       &t.Cluster.Err,
		"apiserverNode":   &t.Cluster.NodeErr,
		"machine":         &t.Cluster.LocalErr,
		"staticManifests": &t.Static.Err,
		"otherKubelets":   &t.Others.Err,
	}
}
