package hungtasks

import (
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }
