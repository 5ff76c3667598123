package browser

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/nodeagent/nodeagent/test/trace/pagestest"
)

// The pages of tracecenter: a person comes from the health board to the reason of a late pod, and every page is accessible.
func TestTracePages(t *testing.T) {
	address, sessions := pagestest.Serve(t, nil)
	ctx := browser(t, true)
	signIn(t, ctx, address, sessions)
	var text string
	run(t, ctx, chromedp.Click(`//a[text()="CapacityExhausted"]`), chromedp.WaitVisible("#pods"),
		chromedp.Click(`//section//a[text()="team/gone"]`), chromedp.WaitVisible("svg rect"), chromedp.Text("main", &text))
	for _, want := range []string{"missed", "CapacityExhausted (system)", "queue and schedule", "Add nodes"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q:\n%s", want, text)
		}
	}
	shown(t, ctx, address, map[string]string{"trace-board": "/", "trace-failures": "/failures?window=1d&reason=CapacityExhausted",
		"trace-pod": "/pods/team/gone", "trace-search": "/pods", "trace-none": "/pods/a/b", "trace-terminating": "/terminating",
		"trace-nodes": "/nodes", "trace-components": "/components", "trace-versions": "/versions", "trace-report": "/report"})
}
