package npd

import (
	"testing"
)

// TestConditionWithoutRule: like node-problem-detector, report each declared condition from the start, even one that no
// rule can make True, whatever the state of the log; each is one check.
func TestConditionWithoutRule(t *testing.T) {
	for name, text := range map[string]string{
		"plugin": `{"plugin":"custom","source":"c","conditions":[{"type":"NetworkLatency","reason":"Normal","message":"m"},{"type":"B","reason":"BOk"}],
			"rules":[{"type":"permanent","condition":"B","reason":"BBad","path":"/bin/true"}]}`,
		"plugin, temporary": `{"plugin":"custom","source":"c","conditions":[{"type":"NetworkLatency","reason":"Normal"}],
			"rules":[{"type":"temporary","reason":"BBad","path":"/bin/true"}]}`,
		"plugin, no rule, twice": `{"plugin":"custom","source":"c","conditions":[{"type":"NetworkLatency"},{"type":"NetworkLatency"}],"rules":[]}`,
		"log": `{"plugin":"journald","pluginConfig":{"source":"x"},"source":"k","conditions":[{"type":"NetworkLatency","reason":"Normal"}],
			"rules":[{"type":"temporary","reason":"X","pattern":"x"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			m := New([]File{mustDecode(t, "/etc/m.json", text)}, nil, DefaultSettings(), Deps{Host: madeUp()})
			found := 0
			for _, c := range m.Checks() {
				if c.Condition.Type != "NetworkLatency" {
					continue
				}
				found++
				if findings, err := c.Run(t.Context(), madeUp()); len(findings) > 0 || err != nil {
					t.Errorf("%s: %v, %v", c.ID, findings, err)
				}
			}
			if found != 1 {
				t.Errorf("%d checks of the condition", found)
			}
		})
	}
}
