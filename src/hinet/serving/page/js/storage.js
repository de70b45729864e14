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
