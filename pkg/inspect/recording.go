package inspect

import (
	"maps"
	"slices"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/verdict"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// Recording makes each pass call record with its evidence. record must not change it.
func (i *Inspector) Recording(record func(verdict.Evidence)) *Inspector {
	i.record = record
	return i
}

// recordPass records the evidence of a pass with its report.
func (i *Inspector) recordPass(report object.Report, inventory witness.Inventory, history object.History) {
	if i.record == nil {
		return
	}
	objects := make([]object.Object, 0, len(report.Objects))
	for n := range report.Objects {
		objects = append(objects, report.Objects[n].Object)
	}
	i.record(verdict.Evidence{Objects: objects, Inventory: inventory, History: maps.Clone(history), Settings: i.settings,
		Now: report.At, Failures: slices.Clone(report.Errors)})
}
