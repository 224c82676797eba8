// Package browser lets a test use a page in a headless Chromium as a person does. It must not depend on any other package of the
// module, and only tests import it.
package browser

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// patience bounds every wait for the browser: an answer, a load event, a condition in a page.
const patience = 30 * time.Second

// missing is the message of a skipped test.
const missing = "no Chromium on this machine: install Debian's package chromium, or put chromium or google-chrome into PATH"

// find returns the path of the first Chromium or Chrome in PATH, or "". .ci/chromium.sh looks for the same names.
func find() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless-shell"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// Browser is one running Chromium. Its tabs may be opened by the sub-tests of the test that started it.
type Browser struct {
	ctx context.Context
}

// Start starts a headless Chromium that ends with the test t, and with its process. If Chromium is not installed, the test is skipped.
func Start(t testing.TB) *Browser {
	t.Helper()
	path := find()
	if path == "" {
		t.Skip(missing)
	}
	// The sandbox needs rights that a container lacks, and the pages are our own. Only this machine's addresses resolve, so the browser
	// reaches no network.
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-domain-reliability", true),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"))
	allocator, release := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(release)
	ctx, end := chromedp.NewContext(allocator)
	t.Cleanup(end)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("%s does not start: %v", path, err)
	}
	return &Browser{ctx}
}

// Open starts a browser only for the test t and opens url in it, as [Browser.Open] does.
func Open(t testing.TB, url string, width, height int) *Tab {
	t.Helper()
	return Start(t).Open(t, url, width, height)
}
