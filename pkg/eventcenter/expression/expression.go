// Package expression filters events with expressions in the Common Expression Language (CEL), beyond the fields of a
// filter. An expression has no side effects, always ends, and is limited in cost: estimated when it is compiled and
// enforced when it is evaluated.
package expression

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/types"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

const (
	maxText = 4096    // bytes of an expression
	maxCost = 200_000 // per event, in CEL's units: some milliseconds
	maxSize = 1000    // assumed length of a text, list or map of an event
)

// Expression is a compiled expression. It is safe for concurrent use.
type Expression struct {
	program cel.Program
}

// Compile compiles an expression whose value is a bool. Its variables are the strings type, source, subject, severity,
// cluster, node, check and reason, data (the event's), and event (all members of the CloudEvent). It refuses invalid
// expressions, and those that could cost too much.
func Compile(text string) (*Expression, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("%d bytes, %d are possible", len(text), maxText)
	}
	env, err := environment()
	if err != nil {
		return nil, err
	}
	checked, issues := env.Compile(text)
	if err := issues.Err(); err != nil {
		return nil, fmt.Errorf("no expression: %s", strings.Join(strings.Fields(err.Error()), " "))
	}
	if t := checked.OutputType(); !t.IsExactType(types.BoolType) && !t.IsExactType(types.DynType) {
		return nil, fmt.Errorf("its value is of type %s, want bool", t)
	}
	cost, err := env.EstimateCost(checked, estimator{})
	if err != nil {
		return nil, fmt.Errorf("estimate its cost: %w", err)
	}
	if cost.Max > maxCost {
		return nil, fmt.Errorf("too costly: up to %d for an event, %d are possible; a loop in a loop is most of it", cost.Max,
			maxCost)
	}
	program, err := env.Program(checked, cel.CostLimit(maxCost), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, err
	}
	return &Expression{program}, nil
}

// environment is the same for all expressions.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	options := []cel.EnvOption{cel.Variable("data", cel.DynType), cel.Variable("event",
		cel.MapType(cel.StringType, cel.DynType))}
	for _, name := range []string{"type", "source", "subject", "severity", "cluster", "node", "check", "reason"} {
		options = append(options, cel.Variable(name, cel.StringType))
	}
	return cel.NewEnv(options...)
})

// estimator limits the size of an event's values.
type estimator struct{}

// EstimateSize implements checker.CostEstimator.
func (estimator) EstimateSize(node checker.AstNode) *checker.SizeEstimate {
	if len(node.Path()) == 0 { // computed, such as a literal: its size is known
		return nil
	}
	return &checker.SizeEstimate{Max: maxSize}
}

// EstimateCallCost implements checker.CostEstimator.
func (estimator) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// Matches reports whether an expression is true of an event. If the event lacks a field that the expression uses, the
// result is false. Any other error means that the result is unknown.
func (x *Expression) Matches(r journal.Record) (bool, error) {
	var event map[string]any
	if err := json.Unmarshal(r.JSON, &event); err != nil {
		return false, fmt.Errorf("offset %d: %w", r.Offset, err)
	}
	subject, _ := event["subject"].(string)
	value, _, err := x.program.Eval(map[string]any{"event": event, "data": event["data"], "type": r.Type,
		"source": r.Source, "subject": subject, "severity": r.Severity, "cluster": r.Cluster, "node": r.Node,
		"check": r.Check, "reason": r.Reason})
	if err != nil {
		if absent(err) {
			return false, nil
		}
		return false, err
	}
	match, ok := value.Value().(bool)
	if !ok {
		return false, errors.New("its value is no bool")
	}
	return match, nil
}

// absent reports whether an event lacks a field that the expression uses.
func absent(err error) bool {
	text := err.Error()
	return strings.HasPrefix(text, "no such key") || strings.HasPrefix(text, "no such attribute")
}
