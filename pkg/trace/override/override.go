// Package override reads the file in which a cluster gives reasons other classes than the table does.
package override

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"

	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/web/settings"
)

// Parse reads a file of overrides; errors contain name. It reports all errors at once, each with its line.
func Parse(name string, data []byte) (reason.Overrides, error) {
	var document yaml.Node
	if err := settings.Read(bytes.NewReader(data), &document); errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: no reasons", name)
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p := parser{name: name}
	found := reason.Overrides{}
	root := document.Content[0]
	p.each(root, "", func(key, value *yaml.Node) {
		if key.Value != "reasons" {
			p.fail(key, "unknown key %q", key.Value)
			return
		}
		p.each(value, "reasons: ", func(key, value *yaml.Node) { p.reason(key, value, found) })
	})
	if len(p.errs) == 0 && len(found) == 0 {
		p.fail(root, "no reasons")
	}
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	return found, nil
}

type parser struct {
	name string
	errs []error
}

func (p *parser) fail(at *yaml.Node, format string, values ...any) {
	p.errs = append(p.errs, fmt.Errorf("%s:%d: %s", p.name, at.Line, fmt.Sprintf(format, values...)))
}

// each calls do for each key of a map and its value.
func (p *parser) each(n *yaml.Node, what string, do func(key, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		p.fail(n, "%smust be a map", what)
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if seen[key.Value] {
			p.fail(key, "%s%s is given twice", what, key.Value)
			continue
		}
		seen[key.Value] = true
		do(key, n.Content[i+1])
	}
}

func (p *parser) reason(key, value *yaml.Node, found reason.Overrides) {
	r := reason.Reason(key.Value)
	switch {
	case r == reason.Unknown:
		p.fail(key, "%s: has no class", r)
		return
	case reason.Describe(r).Advice == "":
		p.fail(key, "no reason %q", r)
		return
	}
	before := len(p.errs)
	p.each(value, key.Value+": ", func(field, value *yaml.Node) {
		class := reason.Class(value.Value)
		switch {
		case field.Value != "class":
			p.fail(field, "%s: unknown key %q", r, field.Value)
		case class != reason.System && class != reason.User:
			p.fail(value, "%s: class %q: must be system or user", r, value.Value)
		default:
			found[r] = class
		}
	})
	if _, ok := found[r]; !ok && (len(p.errs) == before || value.Kind == yaml.MappingNode) {
		p.fail(key, "%s: no class", r)
	}
}
