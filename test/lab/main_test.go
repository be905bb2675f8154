package lab

import (
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// testLabs begins the names of the labs of tests.
const testLabs = "t-"

// runsLock excludes other runs with labs from the machine (test/e2e/fixture): labs of two checkouts have the same names.
const runsLock = "/run/ovsdn-e2e.lock"

// TestMain takes the labs of tests down if the run is interrupted.
func TestMain(m *testing.M) {
	flag.Parse()
	if os.Geteuid() != 0 {
		m.Run()
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	defer context.AfterFunc(ctx, abandon)()
	if !testing.Short() { // only the complete tier brings labs up
		lock, err := os.OpenFile(runsLock, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			log.Fatal(err)
		}
		defer lock.Close()
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			log.Printf("waiting for the end of another run in a lab: %s", runsLock)
			if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
				log.Fatalf("lock %s: %v", runsLock, err)
			}
		}
	}
	m.Run()
}

func abandon() {
	names, err := All()
	for _, name := range names {
		if !strings.HasPrefix(name, testLabs) {
			continue
		}
		if _, downErr := Down(context.Background(), name, log.Printf); downErr != nil {
			log.Print(downErr)
		}
	}
	log.Fatal(errors.Join(errors.New("interrupted"), err))
}
