// Browser storage. If it is turned off, choices last as long as the page.

export function keep(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    return;
  }
}

export function stored(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

export function drop(key) {
  try {
    localStorage.removeItem(key);
  } catch {
    return;
  }
}

// Values that a page keeps until it has dealt with them. The page owns its key as long as it is open: by a lock, or,
// where pages have none (without HTTPS), by the time of its last sign of life. Pages that open later adopt the values of
// pages that were closed.

const ALIVE = "hinet-alive/";
const BEAT = 5000; // milliseconds between signs of life
const SILENCE = 120_000; // milliseconds after which a page counts as closed; timers of hidden pages run once a minute

export function own(key) {
  if (navigator.locks) {
    navigator.locks.request(key, () => new Promise(() => {})).catch(() => {});
    return;
  }
  const beat = () => keep(ALIVE + key, Date.now());
  beat();
  setInterval(beat, BEAT);
  addEventListener("pagehide", () => drop(ALIVE + key));
  addEventListener("pageshow", ({ persisted }) => persisted && location.reload()); // another page may have its values
}

// Removes the values of closed pages whose keys start with a prefix, each after take(value), which keeps it elsewhere.
export async function adopt(prefix, ownKey, take) {
  const move = (key) => {
    const value = stored(key);
    if (value !== null) take(value);
    drop(key);
  };
  for (const key of keysOf(prefix).filter((other) => other !== ownKey)) {
    if (navigator.locks) {
      await navigator.locks.request(key, { ifAvailable: true }, (lock) => lock && move(key)).catch(() => {});
    } else if (Date.now() - Number(stored(ALIVE + key)) > SILENCE) {
      drop(ALIVE + key);
      move(key);
    }
  }
}

function keysOf(prefix) {
  try {
    return Object.keys(localStorage).filter((key) => key.startsWith(prefix));
  } catch {
    return [];
  }
}
